//! Reads numbers of f32. A larger one would become infinite, which JSON cannot represent.

use serde::de::{Deserialize, Deserializer, Error};

pub fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f32, D::Error> {
    let read = f32::deserialize(from)?;
    if read.is_finite() { Ok(read) } else { Err(D::Error::custom("a number is larger than any of f32")) }
}

/// Reads a number that may be `null`.
pub fn optional<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f32>, D::Error> {
    let read = Option::<f32>::deserialize(from)?;
    match read.filter(|read| !read.is_finite()) {
        None => Ok(read),
        Some(_) => Err(D::Error::custom("a number is larger than any of f32")),
    }
}

/// Reads rows of numbers; one that is `null` becomes NaN.
pub fn rows<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Vec<f32>>, D::Error> {
    let read = Vec::<Vec<Option<f32>>>::deserialize(from)?;
    let number = |number: Option<f32>| number.unwrap_or(f32::NAN);
    Ok(read.into_iter().map(|row| row.into_iter().map(number).collect()).collect())
}
