//! JSON to which sentences are added. Fields keep their order, which `serde_json::Value` does not.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Serialize, Serializer};
use serde_json::Value;

/// A value with its fields in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    /// A number, a text, true, false or null.
    Plain(Value),
    List(Vec<Json>),
    Fields(Vec<(String, Json)>),
}

impl Json {
    pub(crate) fn new(value: &impl Serialize) -> Json {
        let text = serde_json::to_string(value).expect("plain data serialises");
        serde_json::from_str(&text).expect("what was written is read")
    }

    /// As text, indented.
    pub(crate) fn pretty(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data serialises")
    }

    /// Adds a field to this object, or replaces the field's value.
    pub(crate) fn set(&mut self, name: &str, value: Json) {
        let Json::Fields(fields) = self else { return };
        match fields.iter_mut().find(|(other, _)| other == name) {
            Some((_, old)) => *old = value,
            None => fields.push((name.to_owned(), value)),
        }
    }

    /// Changes each item of the list `name` by the value that it was written from.
    pub(crate) fn each<T>(&mut self, name: &str, values: &[T], mut change: impl FnMut(&mut Json, &T)) {
        if let Json::Fields(fields) = self
            && let Some((_, Json::List(items))) = fields.iter_mut().find(|(other, _)| other == name)
        {
            items.iter_mut().zip(values).for_each(|(item, value)| change(item, value));
        }
    }

    /// Changes the field `name`, if there is one.
    pub(crate) fn field(&mut self, name: &str, change: impl FnOnce(&mut Json)) {
        if let Json::Fields(fields) = self
            && let Some((_, field)) = fields.iter_mut().find(|(other, _)| other == name)
        {
            change(field);
        }
    }
}

impl From<String> for Json {
    fn from(text: String) -> Json {
        Json::Plain(text.into())
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Json::Plain(value) => value.serialize(serializer),
            Json::List(items) => serializer.collect_seq(items),
            Json::Fields(fields) => serializer.collect_map(fields.iter().map(|(name, value)| (name, value))),
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(Any)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Plain(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Plain(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Plain(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Plain(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Plain(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Plain(Value::Null))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = entries.next_entry()? {
            fields.push(field);
        }
        Ok(Json::Fields(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_added_and_all_else_stays_as_it_was_written() {
        let text = r#"{"b":[{"x":0.1,"a":null},{"x":-1}],"a":{"k":"v"}}"#;
        let mut json: Json = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&json).unwrap(), text);
        json.each("b", &["one", "two"], |item, told| item.set("told", (*told).to_owned().into()));
        json.field("a", |field| field.set("k", "w".to_owned().into()));
        json.field("missing", |_| unreachable!());
        let told = r#"{"b":[{"x":0.1,"a":null,"told":"one"},{"x":-1,"told":"two"}],"a":{"k":"w"}}"#;
        assert_eq!(serde_json::to_string(&json).unwrap(), told);
    }
}
