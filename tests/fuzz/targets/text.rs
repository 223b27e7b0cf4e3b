//! The three-way merge of text, against a slow reference that knows the edits instead of guessing them.

use treefork::merge::merge_text;

/// A byte of an edit script for one side: what becomes of one line, and what comes before it.
fn edit(line: &str, byte: u8, side: char) -> (Option<String>, Option<String>) {
    let before = (byte & 0b100 != 0).then(|| format!("{side} new before {line}"));
    let stays = match byte & 0b11 {
        0 | 1 => Some(line.to_owned()),
        2 => None,
        _ => Some(format!("{side} instead of {line}")),
    };
    (before, stays)
}

fn lines<'a>(all: impl Iterator<Item = &'a (Option<String>, Option<String>)>) -> String {
    all.flat_map(|(before, stays)| [before, stays]).flatten().map(|line| format!("{line}\n")).collect()
}

/// Edits of lines that are all different: merged they are both edits, or refused where they touch.
pub(crate) fn edits(data: &[u8]) {
    let pairs: Vec<&[u8]> = data.chunks_exact(2).take(64).collect();
    let old: Vec<String> = (0..pairs.len()).map(|n| format!("line {n}")).collect();
    let ancestor: String = old.iter().map(|line| format!("{line}\n")).collect();
    let side = |at: usize, name| old.iter().zip(&pairs).map(|(l, p)| edit(l, p[at], name)).collect::<Vec<_>>();
    let (ours, theirs) = (side(0, 'O'), side(1, 'T'));
    let changed = |edits: &[(Option<String>, Option<String>)]| {
        let differs = |(line, (before, stays)): (&String, &(Option<String>, Option<String>))| {
            before.is_some() || stays.as_ref() != Some(line)
        };
        old.iter().zip(edits).map(differs).collect::<Vec<bool>>()
    };
    let (by_us, by_them) = (changed(&ours), changed(&theirs));
    let both: Vec<_> = by_us.iter().zip(&ours).zip(&theirs).map(|((us, o), t)| if *us { o } else { t }).collect();
    let merged = merge_text(ancestor.as_bytes(), lines(ours.iter()).as_bytes(), lines(theirs.iter()).as_bytes());
    let near = |at: usize| at.saturating_sub(1)..=(at + 1).min(pairs.len() - 1);
    let one_sided = !by_us.contains(&true) || !by_them.contains(&true);
    let touching = (0..pairs.len()).any(|at| by_us[at] && near(at).any(|other| by_them[other]));
    let clash = (0..pairs.len()).any(|at| by_us[at] && by_them[at] && ours[at] != theirs[at]);
    match merged {
        Some(merged) if !clash || one_sided => {
            assert_eq!(String::from_utf8_lossy(&merged), lines(both.into_iter()), "{data:?}");
        }
        // Edits of one line that do not exclude each other, such as a line before it and another in its place.
        Some(merged) => nothing_made_up(&merged, &[&lines(ours.iter()), &lines(theirs.iter())]),
        None => assert!(touching && !one_sided, "apart, and yet refused: {data:?}"),
    }
}

fn nothing_made_up(merged: &[u8], sides: &[&str]) {
    for line in String::from_utf8_lossy(merged).lines() {
        assert!(sides.iter().any(|side| side.lines().any(|other| other == line)), "{line:?} is in neither");
    }
}

/// Any three texts, divided by bytes 0xff: what one side alone changed is the result; no side is preferred; no marker and
/// no line comes from nowhere.
pub(crate) fn texts(data: &[u8]) {
    let mut parts = data.split(|&byte| byte == 0xff);
    let [a, o, t] = [(); 3].map(|()| parts.next().unwrap_or_default());
    assert_eq!(merge_text(a, a, t).as_deref(), Some(t));
    assert_eq!(merge_text(a, o, a).as_deref(), Some(o));
    assert_eq!(merge_text(a, o, o).as_deref(), Some(o));
    let Some(merged) = merge_text(a, o, t) else { return };
    let known: std::collections::HashSet<&[u8]> = [a, o, t].into_iter().flat_map(split).collect();
    for line in split(&merged) {
        assert!(known.contains(line), "{:?} is in none of them: {data:?}", String::from_utf8_lossy(line));
    }
}

fn split(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n')
}
