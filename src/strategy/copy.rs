//! Forks that are plain copies: what works everywhere, for the price of the bytes.

use super::{Guarantees, Made, Site, Strategy, Way, Wishes, copied};
use crate::error::Result;
use crate::git::own;

/// The strategy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Copy;

impl Strategy for Copy {
    fn way(&self) -> Way {
        Way::Copy
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            frozen_against_merges: true,
            frozen_against_drift: true,
            own_git: true,
            same_identity: false,
            cost: "O(bytes)",
        }
    }

    /// Refused only where the base's git directory lies elsewhere and cannot be copied.
    fn probe(&self, site: &Site) -> Result<()> {
        own::fixes(&site.base, &site.tree(), &own::likely_tops(&site.base)).map(drop)
    }

    fn create(&self, site: &Site, wishes: &Wishes) -> Result<Made> {
        copied::create(site, wishes, false)
    }

    fn destroy(&self, _site: &Site) -> Result<()> {
        Ok(())
    }

    fn is_changed(&self, site: &Site) -> Result<Option<bool>> {
        copied::is_changed(site)
    }
}
