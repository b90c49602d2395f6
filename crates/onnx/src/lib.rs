//! Writes a model that continues or encodes texts as an ONNX graph (<https://onnx.ai/onnx/intro/>), from a bundle
//! alone, without an exporter.
//!
//! [`fused`] is for ONNX Runtime, with its hand-fused operators and at every precision. Weights are not copied into a
//! graph: its initialisers point into the bundle's file ([`Storage`]). Graphs for other runtimes, in operators that
//! several of them have, are written by `references/portable`.
//!
//! [`read`] reads the descriptions in ONNX files from elsewhere, and [`program`] their nodes and weights, for
//! frameworks that run no ONNX files themselves.

pub mod fused;
pub mod graph;

mod blocks;
mod products;
pub mod program;
mod proto;
pub mod read;

pub use graph::{Attention, Rotation};
pub use graph::{Attribute, Dim, GraphBuilder, IN_MEMORY, MICROSOFT, ONNX, Storage, Written};
pub use products::{Products, WITH_INT8, quantised_product};
pub use proto::DataType;
