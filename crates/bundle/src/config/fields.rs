//! Typed access to a JSON object.

use serde_json::Value;

use crate::error::BundleError;

/// Typed access to the fields of one JSON object, with errors that name the field.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) &'a Value);

impl<'a> Fields<'a> {
    /// An absent field and null mean the same in these files.
    fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn wrong(name: &str, value: &Value, wanted: &str) -> BundleError {
        const LONGEST: usize = 80;
        let mut text = value.to_string();
        if let Some((end, _)) = text.char_indices().nth(LONGEST) {
            text.truncate(end);
            text.push_str("… (cut)");
        }
        BundleError::Config(format!("field {name:?} is {text}, not {wanted}"))
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

    /// The number that a norm adds before its root: not negative.
    pub(super) fn epsilon(&self, name: &str, default: f64) -> Result<f64, BundleError> {
        match self.number(name, default)? {
            epsilon if epsilon >= 0.0 => Ok(epsilon),
            _ => Err(Self::wrong(name, &self.0[name], "a number that is not below 0")),
        }
    }

    /// As [`Fields::optional_number`], but an absent field means `default`, and null means `None`.
    pub(super) fn number_unless_null(
        &self,
        name: &str,
        default: Option<f64>,
    ) -> Result<Option<f64>, BundleError> {
        if self.0.get(name).is_none() { Ok(default) } else { self.optional_number(name) }
    }

    fn list(&self, name: &str) -> Result<Option<&'a Vec<Value>>, BundleError> {
        let read = |value: &'a Value| value.as_array().ok_or_else(|| Self::wrong(name, value, "a list"));
        self.get(name).map(read).transpose()
    }

    pub(super) fn numbers(&self, name: &str) -> Result<Vec<f64>, BundleError> {
        let number = |value: &Value| value.as_f64().ok_or_else(|| Self::wrong(name, value, "a number"));
        self.list(name)?.ok_or_else(|| Self::missing(name))?.iter().map(number).collect()
    }

    pub(super) fn optional_texts(&self, name: &str) -> Result<Option<Vec<&'a str>>, BundleError> {
        let text = |value: &'a Value| value.as_str().ok_or_else(|| Self::wrong(name, value, "a string"));
        self.list(name)?.map(|list| list.iter().map(text).collect()).transpose()
    }

    /// A list of 0 and 1, or of false and true.
    pub(super) fn optional_flags(&self, name: &str) -> Result<Option<Vec<bool>>, BundleError> {
        let flag = |value: &Value| match (value.as_bool(), value.as_u64()) {
            (Some(flag), _) => Ok(flag),
            (None, Some(number @ 0..=1)) => Ok(number == 1),
            _ => Err(Self::wrong(name, value, "0 or 1")),
        };
        self.list(name)?.map(|list| list.iter().map(flag).collect()).transpose()
    }

    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool, BundleError> {
        let read = |value: &Value| value.as_bool().ok_or_else(|| Self::wrong(name, value, "true or false"));
        Ok(self.get(name).map(read).transpose()?.unwrap_or(default))
    }

    /// Number of fields.
    pub(super) fn len(&self) -> usize {
        self.0.as_object().map_or(0, serde_json::Map::len)
    }

    pub(super) fn object(&self, name: &str) -> Result<Option<Fields<'a>>, BundleError> {
        let read = |value: &'a Value| {
            if value.is_object() { Ok(Fields(value)) } else { Err(Self::wrong(name, value, "an object")) }
        };
        self.get(name).map(read).transpose()
    }
}
