//! Storage types of weights: one type from the flag to the kernel.

use crate::untrusted::Foreign;

/// Storage type of a model's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    F32,
    Bf16,
    F16,
    /// Symmetric integers of 8 bits, one scale for each output row. See the module `quantised`.
    Int8,
    /// Symmetric integers of 4 bits, one scale for each group of 32 inputs.
    Int4,
    /// The 4-bit NormalFloat of QLoRA, one scale for each block of 64.
    Nf4,
    /// A GGUF's own quantised blocks, of whatever types it has. See the module `blocks`.
    File,
}

impl Precision {
    pub const ALL: [Precision; 7] = [
        Precision::F32,
        Precision::Bf16,
        Precision::F16,
        Precision::Int8,
        Precision::Int4,
        Precision::Nf4,
        Precision::File,
    ];

    /// Those that the weights of any model can be rounded to: all but a file's own.
    pub const MADE: [Precision; 6] =
        [Precision::F32, Precision::Bf16, Precision::F16, Precision::Int8, Precision::Int4, Precision::Nf4];

    /// Possible types of keys and values.
    pub const CACHES: [Precision; 3] = [Precision::F32, Precision::Bf16, Precision::F16];

    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
            Precision::F16 => "f16",
            Precision::Int8 => "int8",
            Precision::Int4 => "int4",
            Precision::Nf4 => "nf4",
            Precision::File => "file",
        }
    }

    /// All names, for messages: `f32, bf16, …`.
    pub fn names() -> String {
        Precision::ALL.map(Precision::name).join(", ")
    }

    /// Bits of one weight in a linear layer, without its share of the scales; of a file's own blocks at most so many.
    pub fn bits(self) -> usize {
        match self {
            Precision::F32 => 32,
            Precision::Bf16 | Precision::F16 => 16,
            Precision::Int8 | Precision::File => 8,
            Precision::Int4 | Precision::Nf4 => 4,
        }
    }

    /// Whether the weights of linear layers are codes with scales.
    pub fn is_quantised(self) -> bool {
        self.bits() < 16
    }

    /// Element type of unquantised tensors: at a quantised precision, of norms and biases.
    pub fn element(self) -> Element {
        match self {
            Precision::Bf16 => Element::Bf16,
            Precision::F16 => Element::F16,
            _ => Element::F32,
        }
    }

    /// The usual data type of the KV cache at weights of this precision: 16 bits at 16 bits, else f32.
    pub fn usual_cache(self) -> Precision {
        match self {
            Precision::Bf16 | Precision::F16 => self,
            _ => Precision::F32,
        }
    }

    /// The file of a bundle that holds the weights at this precision.
    pub fn file_name(self) -> String {
        format!("{}.safetensors", self.name())
    }
}

impl std::fmt::Display for Precision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl From<Precision> for Foreign {
    fn from(precision: Precision) -> Foreign {
        precision.name().into()
    }
}

impl std::str::FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Precision::ALL
            .into_iter()
            .find(|p| p.name() == text)
            .ok_or_else(|| format!("unknown precision {text:?}; there are {}", Precision::names()))
    }
}

/// Element type of one stored tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    F32,
    Bf16,
    F16,
    I8,
    U8,
}

impl Element {
    pub const ALL: [Element; 5] = [Element::F32, Element::Bf16, Element::F16, Element::I8, Element::U8];

    pub fn bytes(self) -> usize {
        match self {
            Element::F32 => 4,
            Element::Bf16 | Element::F16 => 2,
            Element::I8 | Element::U8 => 1,
        }
    }

    /// The spelling of safetensors headers.
    pub fn name(self) -> &'static str {
        match self {
            Element::F32 => "F32",
            Element::Bf16 => "BF16",
            Element::F16 => "F16",
            Element::I8 => "I8",
            Element::U8 => "U8",
        }
    }

    /// From the name in a safetensors header, if it is one that a bundle may hold.
    pub fn from_name(name: &str) -> Option<Element> {
        Element::ALL.into_iter().find(|element| element.name() == name)
    }
}

impl std::fmt::Display for Element {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
