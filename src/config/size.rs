//! Sizes as people write them.

/// What may follow a number, and how many powers of 1024 it stands for.
const UNITS: [(&str, u32); 9] =
    [("", 0), ("K", 1), ("KiB", 1), ("M", 2), ("MiB", 2), ("G", 3), ("GiB", 3), ("T", 4), ("TiB", 4)];

/// The bytes that a size means: `4096`, `64K`, `512M`, `10G`, `1T`; units are powers of 1024 and may be written out (`10GiB`).
///
/// # Errors
/// A sentence for the user, for what is no size, or none that anything fits into.
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let power = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).map(|(_, power)| *power);
    let number = number.parse::<u64>().ok().filter(|&number| number > 0);
    let bytes = number.zip(power).and_then(|(number, power)| number.checked_mul(1 << (10 * power)));
    bytes.ok_or_else(|| format!("{text:?} is no size; write 64K, 512M or 10G"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_of_1024() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("64K"), Ok(64 << 10));
        assert_eq!((size("512m"), size("10GiB"), size("1T")), (Ok(512 << 20), Ok(10 << 30), Ok(1 << 40)));
        for wrong in ["", "0", "0G", "G", "1.5G", "-1", "10 G", "10GB", "99999999T", "10Gi"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
