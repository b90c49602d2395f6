//! A position in bytes that may end at any moment.

pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
}

/// Every read names its purpose, for the error when the bytes run out.
impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, position: 0 }
    }

    pub(crate) fn position(&self) -> usize {
        self.position
    }

    pub(crate) fn take(&mut self, count: u64, what: &str) -> Result<&'a [u8], String> {
        let rest = &self.bytes[self.position..];
        if count > rest.len() as u64 {
            let (end, at) = (self.bytes.len(), self.position);
            return Err(format!(
                "{what} takes {count} bytes from byte {at}, but the file ends at {end}: it is truncated or its header is wrong"
            ));
        }
        self.position += count as usize;
        Ok(&rest[..count as usize])
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], String> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self, what: &str) -> Result<u8, String> {
        self.array(what).map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self, what: &str) -> Result<u16, String> {
        self.array(what).map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self, what: &str) -> Result<u32, String> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, what: &str) -> Result<u64, String> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Length and bytes of a string.
    pub(crate) fn text(&mut self, what: &str) -> Result<&'a [u8], String> {
        let length = self.u64(what)?;
        self.take(length, what)
    }

    /// A string that names something, hence must be readable.
    pub(crate) fn name(&mut self, what: &str) -> Result<String, String> {
        let bytes = self.text(what)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| format!("{what} has a name that is not UTF-8"))
    }
}
