//! Products with a weight at each precision, and rows of a table: the operators and their bytes.
//!
//! f32 uses a FusedMatMul with `transB`: the kernel packs its weight from the bundle's `[out, in]` rows
//! directly; a plain MatMul would first need a transposed copy. int8 and int4 use MatMulNBits, nf4 uses
//! MatMulBnb4; see
//! <https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>.

use bundle::quantised::{INT4_GROUP, INT4_OFFSET, NF4, NF4_BLOCK};
use bundle::{Precision, Quantised, TensorView};

use crate::blocks;
use crate::graph::{Attribute, GraphBuilder, MICROSOFT, ONNX, TOKENS};
use crate::proto::DataType;

/// MatMulNBits' `accuracy_level` for activations rounded to int8 block by block: its fast kernels.
pub const WITH_INT8: i64 = 4;

/// MatMulBnb4's `quant_type` for nf4.
const NF4_TYPE: i64 = 1;

/// Offset of int8 codes in MatMulNBits: it expects unsigned ones and subtracts 128.
pub(crate) const SIGN_BIT: u8 = 0x80;

/// Blocks of int8 are as long as the rows allow, up to this. Longer ones are faster: fewer scales to read and
/// to apply.
const LONGEST_INT8_BLOCK: usize = 64;

/// How weights are multiplied.
#[derive(Debug, Clone, Copy)]
pub struct Products {
    pub precision: Precision,
    /// In f32 by the dequantised weights, if the precision is a quantised one.
    pub dequantised: bool,
    /// In f32 by weights that are stored in 16 bits and cast in every run. Constant folding would cast them
    /// once.
    pub converted: bool,
    /// Whether nodes over constants are computed while loading.
    pub folds_constants: bool,
}

impl Products {
    /// Whether the operator's inputs are codes and scales.
    pub fn by_codes(self) -> bool {
        self.precision.is_quantised() && !self.dequantised
    }

    /// Whether that operator also adds a bias.
    pub(crate) fn adds_bias(self) -> bool {
        self.by_codes() && matches!(self.precision, Precision::Int8 | Precision::Int4)
    }

    /// The element type of activations and cache.
    pub fn float(self) -> DataType {
        match self.precision {
            Precision::F16 if !self.converted => DataType::Float16,
            _ => DataType::Float,
        }
    }

    /// The operator, for people.
    pub fn operator(self) -> &'static str {
        match self.precision {
            _ if self.dequantised => "FusedMatMul (MLAS f32, prepacked) on dequantised weights",
            _ if self.converted => "FusedMatMul (MLAS f32) on weights from a Cast in every run",
            Precision::Int8 => "MatMulNBits (8 bits)",
            Precision::Int4 => "MatMulNBits (4 bits)",
            Precision::Nf4 => "MatMulBnb4 (nf4)",
            Precision::File => "MatMulNBits (4 or 8 bits)",
            Precision::F16 => "FusedMatMul (cuBLAS f16)",
            _ => "FusedMatMul (MLAS f32, prepacked)",
        }
    }

    pub fn weight_storage(self) -> &'static str {
        match self.precision {
            _ if self.dequantised => "dequantised, and a prepacked copy",
            _ if self.converted => "mapped; converted to f32 for every product",
            // Its kernel dequantises the mapped codes again in every step.
            Precision::Nf4 => "mapped",
            Precision::File => {
                "the file's own blocks, their codes and scales exact in a copy that is prepacked"
            }
            Precision::F16 => "one copy on the device",
            _ => "prepacked copy; embedding mapped",
        }
    }
}

/// `out` = `input` · Wᵀ, with W of int8, int4, nf4 or a file's own blocks under its name. The bias is added if it is not
/// empty, for which [`Products::adds_bias`].
pub fn quantised_product(
    graph: &mut GraphBuilder,
    products: Products,
    accuracy_level: i64,
    (input, (name, weight, bias), out): (&str, (&str, &Quantised<'_>, &str), &str),
) {
    if weight.precision == Precision::File {
        return blocks::product(graph, accuracy_level, (input, (name, weight), out));
    }
    let (rows, columns) = (weight.rows, weight.columns);
    let scales = format!("{name}.scale");
    let sizes = [Attribute::Int("K", columns as i64), Attribute::Int("N", rows as i64)];
    if weight.precision == Precision::Nf4 {
        graph.weight(name, DataType::Uint8, &[weight.codes.bytes.len()], &weight.codes);
        graph.weight(&scales, DataType::Float, &weight.scales.shape, &weight.scales);
        let [k, n] = sizes;
        let block = Attribute::Int("block_size", NF4_BLOCK as i64);
        let attributes = [k, n, block, Attribute::Int("quant_type", NF4_TYPE)];
        graph.node((MICROSOFT, "MatMulBnb4"), &[input, name, &scales], &[out], &attributes);
        return;
    }
    let (bits, block, codes) = if weight.precision == Precision::Int4 {
        let blob = INT4_GROUP / 2;
        graph.weight(name, DataType::Uint8, &[rows, columns / INT4_GROUP, blob], &weight.codes);
        graph.weight(&scales, DataType::Float, &weight.scales.shape, &weight.scales);
        (4, INT4_GROUP, name.to_owned())
    } else {
        let block = int8_block(columns);
        let dims = [rows, columns / block, block];
        let repeated =
            weight.scale_values().into_iter().flat_map(|s| std::iter::repeat_n(s, columns / block));
        graph.floats(&scales, &dims[..2], repeated);
        (8, block, unsigned_codes(graph, products, (name, &weight.codes), &dims))
    };
    let [k, n] = sizes;
    let attributes = [
        k,
        n,
        Attribute::Int("bits", bits),
        Attribute::Int("block_size", block as i64),
        Attribute::Int("accuracy_level", accuracy_level),
    ];
    // Between them are zero points and the order of groups, which these codes have not.
    let inputs = [input, &codes, &scales, "", "", bias];
    let inputs = if bias.is_empty() { &inputs[..3] } else { &inputs[..] };
    graph.node((MICROSOFT, "MatMulNBits"), inputs, &[out], &attributes);
}

/// The longest power of two that divides a row; one scale holds for the whole of it.
pub(crate) fn int8_block(columns: usize) -> usize {
    (1 << columns.trailing_zeros()).min(LONGEST_INT8_BLOCK)
}

/// int8 codes with their sign bit flipped. Constant folding does that from the mapped file, so that no copy
/// of all codes passes through the graph's own bytes; if the graph is to run as written, they are written
/// flipped.
pub(crate) fn unsigned_codes(
    graph: &mut GraphBuilder,
    products: Products,
    (name, codes): (&str, &TensorView<'_>),
    dims: &[usize],
) -> String {
    let out = format!("{name}.unsigned");
    if products.folds_constants {
        graph.weight(name, DataType::Uint8, dims, codes);
        graph.bytes("sign.bit", DataType::Uint8, &[1], vec![SIGN_BIT]);
        graph.node((ONNX, "BitwiseXor"), &[name, "sign.bit"], &[&out], &[]);
    } else {
        let flipped = || codes.bytes.iter().map(|code| code ^ SIGN_BIT).collect();
        graph.computed(&out, DataType::Uint8, dims, flipped);
    }
    out
}

/// Rows of a quantised table, dequantised: the values of each byte are looked up in a table of 256, and
/// multiplied by their scale. That is exact, and costs a few microseconds.
pub(crate) fn quantised_rows(graph: &mut GraphBuilder, name: &str, table: &Quantised<'_>, out: &str) {
    if table.precision == Precision::File {
        return blocks::rows(graph, name, table, out);
    }
    let block = match table.precision {
        Precision::Int8 => table.columns,
        Precision::Int4 => INT4_GROUP,
        _ => NF4_BLOCK,
    };
    if !table.columns.is_multiple_of(block) {
        // Blocks of nf4 would span two rows: the table is written dequantised.
        let values = table.dequantised();
        graph.floats("embed.table", &[table.rows, table.columns], values);
        graph.node((ONNX, "Gather"), &["embed.table", TOKENS], &[out], &[]);
        return;
    }
    let blocks = table.columns / block;
    let width = table.codes.bytes.len() / table.rows;
    let (codes, scales) = (format!("{name}.rows"), format!("{name}.rows.scale"));
    graph.weight(&codes, DataType::Uint8, &[table.rows, width], &table.codes);
    graph.weight(&scales, DataType::Float, &[table.rows, blocks, 1], &table.scales);
    let meanings: Vec<f32> = (0..=u8::MAX).flat_map(|byte| meaning(table.precision, byte)).collect();
    graph.floats("embed.meanings", &[256, meanings.len() / 256], meanings);
    graph.integers("embed.blocks", &[0, 0, blocks as i64, block as i64]);
    graph.integers("embed.joined", &[0, 0, table.columns as i64]);
    graph.node((ONNX, "Gather"), &[&codes, TOKENS], &["embed.codes"], &[]);
    graph.cast("embed.codes", DataType::Int32, "embed.indices");
    graph.node((ONNX, "Gather"), &["embed.meanings", "embed.indices"], &["embed.values"], &[]);
    graph.node((ONNX, "Reshape"), &["embed.values", "embed.blocks"], &["embed.unscaled"], &[]);
    graph.node((ONNX, "Gather"), &[&scales, TOKENS], &["embed.scales"], &[]);
    graph.node((ONNX, "Mul"), &["embed.unscaled", "embed.scales"], &["embed.scaled"], &[]);
    graph.node((ONNX, "Reshape"), &["embed.scaled", "embed.joined"], &[out], &[]);
}

/// The values of a byte of codes, before scaling.
fn meaning(precision: Precision, byte: u8) -> Vec<f32> {
    let integer = |nibble: u8| f32::from(nibble as i8 - INT4_OFFSET);
    match precision {
        Precision::Int8 => vec![f32::from(byte as i8)],
        Precision::Int4 => vec![integer(byte & 15), integer(byte >> 4)],
        _ => [byte >> 4, byte & 15].map(|nibble| NF4[usize::from(nibble)]).into(),
    }
}
