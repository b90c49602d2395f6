//! Catches panics of libraries on untrusted input. They become errors, as for any other unreadable input.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// Whether this thread is inside such a call: its panics are not shown.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs the call. The error is the panic's message.
pub(crate) fn survived<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOKED: Once = Once::new();
    HOOKED.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !INSIDE.get() {
                usual(panic);
            }
        }));
    });
    let was_inside = INSIDE.replace(true);
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    INSIDE.set(was_inside);
    done.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it gives no reason");
        format!("the library for it broke off ({})", text.lines().next().unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_sentence_and_the_next_work_is_done() {
        let error = survived(|| panic!("index {} is out of range\nand more", 7)).unwrap_err();
        assert_eq!(error, "the library for it broke off (index 7 is out of range)");
        assert_eq!(survived(|| 3), Ok(3));
        assert!(survived(|| panic!("{}", "because")).is_err_and(|error| error.contains("because")));
    }
}
