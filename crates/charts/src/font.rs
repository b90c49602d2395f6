//! The font, registered under the family name used in SVG text.

use std::sync::Once;

use plotters::style::{FontStyle, register_font};

/// The font family: in SVG it is the reader's own font; here it is DejaVu Sans, which is wider than most.
pub(crate) const FAMILY: &str = "sans-serif";

/// Latin letters and the signs that figures need; `fonts/README.md` says how the subsets were made.
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
