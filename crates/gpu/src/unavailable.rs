//! Why a reading is not available, as a sentence.

use nvml_wrapper::error::NvmlError;

/// A reading that there is not. Its text says which, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable {
    what: String,
    reason: Reason,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// There is no library.
    NoDriver,
    /// A library was found which is not NVML, or too old a one for this call.
    WrongLibrary(String),
    NotLoaded,
    Mismatch,
    NoPermission,
    NotSupported,
    Lost,
    NeedsReset,
    NoSuchDevice(String),
    /// NVML lists the process without its memory.
    WithoutSize,
    /// NVML does not list the process.
    NotListed,
    Other(String),
}

impl Unavailable {
    pub(crate) fn new(what: impl Into<String>, error: NvmlError) -> Unavailable {
        Unavailable { what: what.into(), reason: Reason::from(error) }
    }

    pub(crate) fn because(what: &str, reason: Reason) -> Unavailable {
        Unavailable { what: what.to_owned(), reason }
    }

    pub(crate) fn no_such_device(why: String) -> Unavailable {
        Unavailable::because("the GPU", Reason::NoSuchDevice(why))
    }

    pub fn reason(&self) -> &Reason {
        &self.reason
    }
}

impl std::fmt::Display for Unavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is not available: {}", self.what, self.reason)
    }
}

impl From<NvmlError> for Reason {
    fn from(error: NvmlError) -> Reason {
        match error {
            NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => Reason::NoDriver,
            NvmlError::FailedToLoadSymbol(symbol) => Reason::WrongLibrary(named(&symbol)),
            NvmlError::FunctionNotFound => Reason::WrongLibrary("a function".to_owned()),
            NvmlError::DriverNotLoaded => Reason::NotLoaded,
            NvmlError::LibRmVersionMismatch => Reason::Mismatch,
            NvmlError::NoPermission | NvmlError::OperatingSystem => Reason::NoPermission,
            NvmlError::NotSupported => Reason::NotSupported,
            NvmlError::GpuLost => Reason::Lost,
            NvmlError::ResetRequired => Reason::NeedsReset,
            other => Reason::Other(other.to_string()),
        }
    }
}

/// The function that a linker's error names.
fn named(error: &str) -> String {
    let words = error.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.into_iter().find(|word| word.starts_with("nvml")).unwrap_or("a function").to_owned()
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reason::NoDriver => write!(f, "this machine has no NVIDIA driver, or hides it from this program"),
            Reason::WrongLibrary(function) => {
                write!(f, "the library has no {function}: it is too old, or another library than NVML")
            }
            Reason::NotLoaded => {
                write!(f, "NVIDIA's driver is installed and not loaded (`nvidia-smi` says more)")
            }
            Reason::Mismatch => write!(
                f,
                "NVIDIA's library and the loaded driver are of different versions: restart the machine, or \
                 install them together"
            ),
            Reason::NoPermission => write!(f, "this user may not ask NVIDIA's driver"),
            Reason::NotSupported => write!(f, "this GPU does not report it"),
            Reason::Lost => write!(f, "the GPU has fallen off the bus: restart the machine"),
            Reason::NeedsReset => write!(f, "the GPU must be reset before it works again"),
            Reason::NoSuchDevice(why) => f.write_str(why),
            Reason::WithoutSize => write!(
                f,
                "NVIDIA's driver lists the process without its memory, as it does on Windows and on a GPU \
                 that is divided (MIG)"
            ),
            Reason::NotListed => write!(
                f,
                "NVIDIA's driver does not list this process: it has not used the GPU yet, or a container \
                 hides its number (`--pid=host` shows it)"
            ),
            Reason::Other(text) => write!(f, "NVIDIA's driver says: {text}"),
        }
    }
}
