//! No code: as `features`, for the crates that only the driver, `prepare` and the workers share.
