//! A picture of a few steps: bars on a logarithmic scale, one group a step, one bar a subject.

use std::fmt::Write as _;

/// One step: its name, and the median of each subject that did it.
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) bars: Vec<(String, f64)>,
}

/// Left of the bars stand the names, right of them the numbers; all in pixels.
const NAMES: f64 = 150.0;
const BARS: f64 = 420.0;
const NUMBERS: f64 = 130.0;
const LINE: f64 = 18.0;
const GAP: f64 = 30.0;

const COLOURS: [(&str, &str); 4] =
    [("plain", "#8c959f"), ("treefork", "#1a7f37"), ("treefork exec", "#2da44e"), ("treefork prewarmed", "#4ac26b")];
const OTHERS: &str = "#d0d7de";

/// The picture, as an SVG document of its own; times in milliseconds, shorter is better.
pub(crate) fn svg(groups: &[Group]) -> String {
    let lines: usize = groups.iter().map(|group| group.bars.len()).sum();
    let width = NAMES + BARS + NUMBERS;
    let height = lines as f64 * LINE + groups.len() as f64 * GAP + 10.0;
    let values = groups.iter().flat_map(|group| group.bars.iter().map(|bar| bar.1));
    let (least, most) = values.fold((f64::INFINITY, 0.0_f64), |(a, b), v| (a.min(v.max(0.1)), b.max(v)));
    // A bar for the shortest time as well.
    let floor = least / 2.0;
    let length = |value: f64| BARS * (value.max(floor) / floor).ln() / (most / floor).ln();

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height:.0}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"{}\" y=\"22\" text-anchor=\"end\" fill=\"#57606a\">logarithmic, shorter is better</text>\n",
        width - 8.0
    );
    let mut y = 0.0;
    for group in groups {
        y += GAP;
        let title = y - 8.0;
        writeln!(svg, "<text x=\"8\" y=\"{title}\" font-weight=\"bold\" fill=\"#24292f\">{}</text>", group.name)
            .expect("a string grows");
        for (subject, value) in &group.bars {
            let colour = COLOURS.iter().find(|c| c.0 == subject).map_or(OTHERS, |c| c.1);
            let (text, long) = (y + 12.5, length(*value));
            let digits = if *value < 10.0 { 1 } else { 0 };
            writeln!(
                svg,
                "<text x=\"{}\" y=\"{text}\" text-anchor=\"end\" fill=\"#24292f\">{subject}</text>\
                 <rect x=\"{NAMES}\" y=\"{}\" width=\"{long:.1}\" height=\"{}\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{text}\" fill=\"#57606a\">{value:.digits$} ms</text>",
                NAMES - 8.0,
                y + 2.0,
                LINE - 4.0,
                NAMES + long + 6.0,
            )
            .expect("a string grows");
            y += LINE;
        }
    }
    svg + "</svg>\n"
}
