//! Typed access to a JSON object.

use serde_json::Value;

use crate::error::BundleError;

/// Typed access to the fields of one JSON object, with errors that name the field.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) &'a Value);

impl<'a> Fields<'a> {
    /// A field that is absent and one that is null mean the same in these files.
    fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn wrong(name: &str, value: &Value, wanted: &str) -> BundleError {
        BundleError::Config(format!("field {name:?} is {value}, not {wanted}"))
    }

    fn missing(name: &str) -> BundleError {
        BundleError::Config(format!("field {name:?} is missing"))
    }

    pub(super) fn optional_text(&self, name: &str) -> Result<Option<&'a str>, BundleError> {
        let read = |value: &'a Value| value.as_str().ok_or_else(|| Self::wrong(name, value, "a string"));
        self.get(name).map(read).transpose()
    }

    pub(super) fn text(&self, name: &str) -> Result<&'a str, BundleError> {
        self.optional_text(name)?.ok_or_else(|| Self::missing(name))
    }

    pub(super) fn optional_count(&self, name: &str) -> Result<Option<usize>, BundleError> {
        let read = |value: &Value| {
            value.as_u64().map(|n| n as usize).ok_or_else(|| Self::wrong(name, value, "a whole number"))
        };
        self.get(name).map(read).transpose()
    }

    pub(super) fn count(&self, name: &str) -> Result<usize, BundleError> {
        self.optional_count(name)?.ok_or_else(|| Self::missing(name))
    }

    pub(super) fn optional_number(&self, name: &str) -> Result<Option<f64>, BundleError> {
        let read = |value: &Value| value.as_f64().ok_or_else(|| Self::wrong(name, value, "a number"));
        self.get(name).map(read).transpose()
    }

    pub(super) fn required_number(&self, name: &str) -> Result<f64, BundleError> {
        self.optional_number(name)?.ok_or_else(|| Self::missing(name))
    }

    pub(super) fn number(&self, name: &str, default: f64) -> Result<f64, BundleError> {
        Ok(self.optional_number(name)?.unwrap_or(default))
    }

    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool, BundleError> {
        let read = |value: &Value| value.as_bool().ok_or_else(|| Self::wrong(name, value, "true or false"));
        Ok(self.get(name).map(read).transpose()?.unwrap_or(default))
    }

    pub(super) fn object(&self, name: &str) -> Result<Option<Fields<'a>>, BundleError> {
        let read = |value: &'a Value| {
            if value.is_object() { Ok(Fields(value)) } else { Err(Self::wrong(name, value, "an object")) }
        };
        self.get(name).map(read).transpose()
    }
}
