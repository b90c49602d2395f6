//! libtorch's own profiler: see `profile.cpp`.

use std::cmp::Reverse;
use std::ffi::{CStr, CString, c_char, c_void};

use engine::{EngineError, Profile, ProfileClock, ProfileEvent};

use crate::error::framework;
use crate::shim::last_error;

#[allow(unsafe_code)]
unsafe extern "C" {
    safe fn engine_tch_profile_begin() -> *mut bool;
    fn engine_tch_profile_begun(begun: *mut bool);
    safe fn engine_tch_profile_end() -> *mut c_void;
    fn engine_tch_profile_count(events: *const c_void) -> usize;
    fn engine_tch_profile_event(events: *const c_void, index: usize, figures: *mut u64) -> *const c_char;
    fn engine_tch_profile_free(events: *mut c_void);
    fn engine_tch_mark_begin(name: *const c_char) -> *mut c_void;
    fn engine_tch_mark_end(mark: *mut c_void);
}

/// Starts the profiler of this thread.
pub(crate) fn begin() -> Result<(), EngineError> {
    let begun = engine_tch_profile_begin();
    if begun.is_null() {
        return Err(framework(last_error()));
    }
    // SAFETY: the shim has just made it, and it is freed once.
    #[allow(unsafe_code)]
    unsafe {
        engine_tch_profile_begun(begun);
    }
    Ok(())
}

/// Ends the profile. Each event belongs to the part of the mark around it.
pub(crate) fn end() -> Result<Profile, EngineError> {
    let told = engine_tch_profile_end();
    if told.is_null() {
        return Err(framework(last_error()));
    }
    // SAFETY: the shim has just made it; the names are copied before it is freed, once.
    #[allow(unsafe_code)]
    let mut noted = unsafe {
        let noted: Vec<_> = (0..engine_tch_profile_count(told)).map(|index| noted(told, index)).collect();
        engine_tch_profile_free(told);
        noted
    };
    noted.sort_by_key(|noted| (noted.thread, noted.start_ns, Reverse(noted.duration_ns)));
    Ok(Profile {
        profiler: "libtorch's profiler".into(),
        clock: ProfileClock::Realtime,
        events: events(&noted),
        notes: vec!["Of the parts of a layer it is not known which an operation is of.".into()],
    })
}

struct Noted {
    name: String,
    is_mark: bool,
    start_ns: u64,
    duration_ns: u64,
    thread: u64,
}

/// # Safety
/// `events` come from the shim, and `index` is below their number.
#[allow(unsafe_code)]
unsafe fn noted(events: *const c_void, index: usize) -> Noted {
    let mut figures = [0; 4];
    // SAFETY: four figures are written; the name is text that ends in 0.
    let name = unsafe { CStr::from_ptr(engine_tch_profile_event(events, index, figures.as_mut_ptr())) };
    let [start_ns, duration_ns, thread, is_mark] = figures;
    Noted { name: name.to_string_lossy().into_owned(), is_mark: is_mark != 0, start_ns, duration_ns, thread }
}

/// `noted` is ordered by thread, then start, then longer events first.
fn events(noted: &[Noted]) -> Vec<ProfileEvent> {
    let mut mark: Option<&Noted> = None;
    let mut events = Vec::with_capacity(noted.len());
    for noted in noted {
        if noted.is_mark {
            mark = Some(noted);
        }
        let is_around = |mark: &&Noted| {
            mark.thread == noted.thread && noted.start_ns < mark.start_ns + mark.duration_ns.max(1)
        };
        events.push(ProfileEvent {
            name: noted.name.clone(),
            part: mark.filter(is_around).map(|mark| mark.name.clone()),
            thread: format!("thread {}", noted.thread),
            start_ns: noted.start_ns,
            duration_ns: noted.duration_ns,
            details: Default::default(),
        });
    }
    events
}

/// Marks everything that runs while it lives.
pub(crate) struct Mark(*mut c_void);

impl Mark {
    pub(crate) fn begin(name: &str) -> Mark {
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: the name is copied.
        #[allow(unsafe_code)]
        let mark = unsafe { engine_tch_mark_begin(name.as_ptr()) };
        Mark(mark)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: `begin` made it, and it is ended once.
        #[allow(unsafe_code)]
        unsafe {
            engine_tch_mark_end(self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(name: &str, is_mark: bool, (start_ns, end_ns): (u64, u64)) -> Noted {
        Noted { name: name.into(), is_mark, start_ns, duration_ns: end_ns - start_ns, thread: 1 }
    }

    #[test]
    fn an_operation_is_of_the_part_whose_mark_is_around_it() {
        let noted = [
            noted("aten::arange", false, (0, 5)),
            noted("layer 3", true, (10, 50)),
            noted("aten::linear", false, (20, 30)),
            noted("aten::copy_", false, (60, 70)),
            noted("head", true, (80, 90)),
            noted("aten::linear", false, (81, 85)),
        ];
        let parts: Vec<_> = events(&noted).into_iter().map(|event| event.part).collect();
        let expected = [None, Some("layer 3"), Some("layer 3"), None, Some("head"), Some("head")];
        assert_eq!(parts, expected.map(|part| part.map(str::to_owned)));
    }
}
