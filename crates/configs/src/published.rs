//! Published figures of other projects, shown with those of a suite.

use std::collections::BTreeMap;

use bundle::Precision;
use serde::{Deserialize, Serialize};

/// A table that somebody published, and which column here is compared with each of its rows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The publication.
    pub source: String,
    /// The hardware and software of the measurement.
    pub conditions: String,
    pub rows: Vec<PublishedRow>,
}

/// One row of a published table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedRow {
    /// The row as its source calls it.
    pub name: String,
    /// The column here that is compared with it.
    pub framework: String,
    /// The precision of that column.
    pub precision: Precision,
    /// Figures by the key of their metric, in its unit.
    pub figures: BTreeMap<String, f64>,
}
