//! The font, registered under the name that SVG text asks for.

use std::sync::Once;

use plotters::style::{FontStyle, register_font};

/// What text asks for: in SVG, whatever the reader has; here, DejaVu Sans, whose metrics are wider than most.
pub(crate) const FAMILY: &str = "sans-serif";

/// Latin and the signs that figures need; `fonts/README.md` says how they were cut out.
const REGULAR: &[u8] = include_bytes!("../fonts/DejaVuSans-subset.ttf");
const BOLD: &[u8] = include_bytes!("../fonts/DejaVuSans-Bold-subset.ttf");

pub(crate) fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (style, bytes) in [(FontStyle::Normal, REGULAR), (FontStyle::Bold, BOLD)] {
            assert!(register_font(FAMILY, style, bytes).is_ok(), "the bundled font is a font");
        }
    });
}
