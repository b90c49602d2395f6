//! Checks that written values are read back unchanged.

use std::fmt::Debug;

/// Asserts that a value is read back as it was written.
pub(crate) fn written_and_read<T>(value: &T)
where
    T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + Debug,
{
    let line = serde_json::to_string(value).expect("plain data can be written");
    assert!(!line.contains('\n'));
    assert_eq!(&serde_json::from_str::<T>(&line).expect("what was written is read"), value);
}
