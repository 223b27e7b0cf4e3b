//! What forks are called: an [`Id`] that treefork makes, and a [`Label`] that a person may give.

use std::fmt;
use std::str::FromStr;

use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind, Result};

/// The longest label, in bytes.
pub const LABEL_MAX: usize = 100;

/// Letters and digits without `i`, `l`, `o` and `u`: nothing that is misread, 32 of them.
const ALPHABET: &[u8; 32] = b"abcdefghjkmnpqrstvwxyz0123456789";
const ID_LEN: usize = 8;

/// The longest id, in bytes.
pub const ID_MAX: usize = 64;

/// What an id may be, for people.
const ID_RULE: &str =
    "an id is 8 to 64 letters, digits, dashes and underscores, with a digit, such as `uuidgen` prints";

/// The name of a fork's directory, which is what makes it unique; see [`super::Store`].
///
/// treefork makes eight random letters and digits, the first a letter. A caller that may have to ask for the same fork
/// again gives one of its own: 8 to [`ID_MAX`] letters, digits, dashes and underscores, a digit among them (so that no
/// word that is typed by mistake is one), the first a letter or digit. A UUID is one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Id(String);

impl Id {
    /// A new random one.
    pub fn random() -> Result<Self> {
        let mut bytes = [0; ID_LEN];
        // Up to 256 bytes come whole (getrandom(2)).
        getrandom(&mut bytes, GetRandomFlags::empty()).map_err(|e| Error::io("cannot get random bytes", e))?;
        let letter = |(n, byte): (usize, u8)| {
            let among = if n == 0 { 22 } else { 32 };
            ALPHABET[usize::from(byte) % among] as char
        };
        Ok(Self(bytes.into_iter().enumerate().map(letter).collect()))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Id {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        let made = text.len() == ID_LEN && text.bytes().all(|b| ALPHABET.contains(&b));
        let given = (ID_LEN..=ID_MAX).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && text.bytes().any(|b| b.is_ascii_digit())
            && text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if made || given {
            Ok(Self(text))
        } else {
            let what = format!("{:?} is no fork id", shortened(&text));
            Err(Error::new(Kind::Usage, what).remedy(ID_RULE))
        }
    }
}

impl FromStr for Id {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        text.to_owned().try_into()
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A name that the caller gives a fork: one line of printable text, no slash, at most [`LABEL_MAX`] bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Label(String);

impl Label {
    /// The label as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Label {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        let wrong = |why: &str| Err(Error::new(Kind::Usage, format!("the label {:?} {why}", shortened(&text))));
        if text.is_empty() {
            return wrong("is empty");
        }
        if text.len() > LABEL_MAX {
            return wrong(&format!("has {} bytes, more than {LABEL_MAX}", text.len()));
        }
        if text.contains('/') {
            return wrong("has a slash");
        }
        if text.chars().any(char::is_control) {
            return wrong("has a line break or control character");
        }
        if text.starts_with(['-', '.']) || text.trim() != text {
            return wrong("starts with a dash or dot, or has spaces around it");
        }
        Ok(Self(text))
    }
}

impl FromStr for Label {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        text.to_owned().try_into()
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The first characters of a text that may be very long.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_valid_and_differ() {
        let (a, b) = (Id::random().expect("random"), Id::random().expect("random"));
        assert_ne!(a, b);
        assert_eq!(a.as_str().parse::<Id>().expect("valid"), a);
        assert!(a.as_str().starts_with(|c: char| c.is_ascii_lowercase()));
        for good in ["7f3c2b1a-9d4e-4f6a-8b2c-0d1e2f3a4b5c", "TASK-17_b", "12345678"] {
            assert_eq!(good.parse::<Id>().expect("valid").as_str(), good);
        }
        let long = "1".repeat(ID_MAX + 1);
        for bad in [
            "",
            "..",
            "abc",
            "abcdefgi",
            "../../xx",
            "ABCDEFGH",
            "idea-parser",
            "1234567",
            "-1234567",
            "1.lock.x",
            &long,
        ] {
            assert!(bad.parse::<Id>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn labels_are_one_plain_line() {
        for good in ["idea-a", "Füchse 2", "a.b_c@d"] {
            assert_eq!(good.parse::<Label>().expect("good").as_str(), good);
        }
        let long = "x".repeat(300);
        for bad in ["", "a/b", "a\nb", "a\tb", "a\u{7f}", "-x", ".x", " x", "x ", &long] {
            let error = bad.parse::<Label>().expect_err(bad);
            assert_eq!(error.kind(), Kind::Usage);
            assert!(!error.to_string().contains('\n') && error.to_string().len() < 120, "{error}");
        }
    }
}
