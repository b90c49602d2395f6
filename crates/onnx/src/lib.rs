pub mod fused;
pub mod graph;

pub mod portable;

mod proto;
pub mod read;

pub use graph::{Attention, Rotation};
pub use graph::{Attribute, Dim, GraphBuilder, IN_MEMORY, MICROSOFT, ONNX, Storage, Written};
pub use graph::{Products, WITH_INT8, quantised_product};
pub use proto::DataType;
