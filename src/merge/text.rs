//! Three-way merge of text, by a library; never a marker, only a result or none.

use diffy::MergeOptions;

/// Beyond this a file is not taken for text that somebody edits.
pub(crate) const LIMIT: u64 = 16 << 20;

/// Whether this is text, as git decides it: no NUL in the first 8,000 bytes.
pub(crate) fn is_text(bytes: &[u8]) -> bool {
    !bytes[..bytes.len().min(8000)].contains(&0)
}

/// Merges two descendants of a text; `None` where both changed the same lines differently, or one is no text.
pub fn merge(ancestor: &[u8], ours: &[u8], theirs: &[u8]) -> Option<Vec<u8>> {
    if ours == theirs || theirs == ancestor {
        return Some(ours.to_vec());
    }
    if ours == ancestor {
        return Some(theirs.to_vec());
    }
    if ![ancestor, ours, theirs].into_iter().all(is_text) {
        return None;
    }
    MergeOptions::new().merge_bytes(ancestor, ours, theirs).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_apart_and_refuses_together() {
        let old = b"1\n2\n3\n4\n5\n6\n7\n8\n9\n";
        let ours = b"one\n2\n3\n4\n5\n6\n7\n8\n9\n";
        let theirs = b"1\n2\n3\n4\n5\n6\n7\n8\nnine\n";
        assert_eq!(merge(old, ours, theirs).as_deref(), Some(&b"one\n2\n3\n4\n5\n6\n7\n8\nnine\n"[..]));
        assert_eq!(merge(old, ours, b"uno\n2\n3\n4\n5\n6\n7\n8\n9\n"), None);
        assert_eq!(merge(old, ours, old).as_deref(), Some(&ours[..]));
        assert_eq!(merge(b"a\0", b"b\0", b"c\0"), None, "not text");
    }

    #[test]
    fn ends_without_a_newline_are_kept() {
        let merged = merge(b"a\nb\nc\nd\ne", b"A\nb\nc\nd\ne", b"a\nb\nc\nd\nE");
        assert_eq!(merged.as_deref(), Some(&b"A\nb\nc\nd\nE"[..]));
    }
}
