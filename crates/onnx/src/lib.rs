//! Writes a decoder or an encoder as an ONNX graph (<https://onnx.ai/onnx/intro/>), from a bundle alone,
//! without an exporter.
//!
//! Two profiles: [`fused`] is for ONNX Runtime, with its hand-fused operators and at every precision;
//! [`portable`] is for other runtimes, in f32 and with operators that several of them have. Weights are not
//! copied into a graph: its initialisers point into the bundle's file ([`Storage`]).
//!
//! [`read`] reads the descriptions in ONNX files from elsewhere.

mod attention;
pub mod fused;
mod graph;
pub mod names;
pub mod portable;
mod products;
mod proto;
pub mod read;

pub use attention::{Attention, Rotation};
pub use graph::{Attribute, Dim, GraphBuilder, IN_MEMORY, MICROSOFT, ONNX, Storage, Written};
pub use products::{Products, WITH_INT8, quantised_product};
pub use proto::DataType;
