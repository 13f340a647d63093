//! Why an action can't be compiled.

use lancet_abi::units::RuntimeAddr;
use lancet_abi::{MapId, SlotId};

/// Why no code was made, or why what was made is not trusted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JitError {
    /// The address for the code is not 32-aligned.
    #[error("code for the probe at {site} was to go to {at}, which is not 32-aligned")]
    Alignment {
        /// Where the code was to go.
        at: RuntimeAddr,
        /// The probe's site.
        site: RuntimeAddr,
    },
    /// A slot outside the layout.
    #[error("slot {slot:?} of the probe at {site} is not in the region, which has {slots} slots")]
    Slot {
        /// The slot.
        slot: SlotId,
        /// Slots that there are.
        slots: u32,
        /// The probe's site.
        site: RuntimeAddr,
    },
    /// A map outside the layout.
    #[error("map {map:?} of the probe at {site} is not in the region")]
    Map {
        /// The map.
        map: MapId,
        /// The probe's site.
        site: RuntimeAddr,
    },
    /// A histogram in a map whose keys have too few slots, or more than it needs.
    #[error(
        "map {map:?} of the probe at {site} has {width} slots a key, its update needs {needed}"
    )]
    Width {
        /// The map.
        map: MapId,
        /// Slots of each key.
        width: u32,
        /// Slots that the update needs.
        needed: u32,
        /// The probe's site.
        site: RuntimeAddr,
    },
    /// A function index that does not fit into an entry.
    #[error("function index {function} of the probe at {site} is too large: use fewer probes")]
    Function {
        /// The index.
        function: u32,
        /// The probe's site.
        site: RuntimeAddr,
    },
    /// An argument beyond what can be read.
    #[error("argument {argument} at the probe at {site} can't be read: arg15 is the last")]
    Argument {
        /// Its number.
        argument: u8,
        /// The probe's site.
        site: RuntimeAddr,
    },
    /// The encoder refused: most likely the region is too far from the code.
    #[error(
        "no code for the probe at {site} at {at} with the region at {region}: {reason}; map the region within 2 GiB of the code"
    )]
    Encode {
        /// The probe's site.
        site: RuntimeAddr,
        /// Where the code was to go.
        at: RuntimeAddr,
        /// Where the region is mapped.
        region: RuntimeAddr,
        /// What the encoder says.
        reason: String,
    },
    /// An action of a script that was not compiled.
    #[error("action {action} of the script at the probe at {site} has no code")]
    Action {
        /// Its number.
        action: u32,
        /// The probe's site.
        site: RuntimeAddr,
    },
    /// A script's action that this compiler can't serve.
    #[error("{what}")]
    Script {
        /// What it has.
        what: String,
    },
    /// The emitted code breaks a rule of the hit path.
    #[error("code at {at} breaks a rule of the hit path: {rule}; this is a defect of lancet")]
    Verify {
        /// The instruction's address.
        at: RuntimeAddr,
        /// Which rule.
        rule: &'static str,
    },
}
