//! Spectrograms of audio, read before a request begins.

use std::collections::BTreeMap;

use protocol::Heard;

use crate::ServeError;

/// The spectrograms that were read, by file, and the one of the request under way.
#[derive(Default)]
pub(crate) struct Audio {
    read: BTreeMap<String, Vec<f32>>,
    turned: Vec<f32>,
}

impl Audio {
    /// The numbers of a spectrogram with so many bands, each rotated as asked.
    pub(crate) fn frames(&mut self, heard: &Heard, bands: usize) -> Result<&[f32], ServeError> {
        let of_file = match self.read.get(&heard.file) {
            Some(numbers) => numbers,
            None => {
                let broken = |error: std::io::Error| ServeError::Job(format!("{}: {error}", heard.file));
                let bytes = std::fs::read(&heard.file).map_err(broken)?;
                let numbers = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
                self.read.entry(heard.file.clone()).or_insert(numbers)
            }
        };
        let frames = (of_file.len() / bands.max(1)).max(1);
        self.turned.clear();
        for band in of_file.chunks(frames) {
            let (before, behind) = band.split_at(heard.turn % band.len());
            self.turned.extend(behind.iter().chain(before));
        }
        Ok(&self.turned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_band_begins_with_the_frame_of_its_turn() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("frames").to_string_lossy().into_owned();
        let bytes: Vec<u8> =
            [0f32, 1.0, 2.0, 10.0, 11.0, 12.0].iter().flat_map(|one| one.to_le_bytes()).collect();
        std::fs::write(&file, bytes).unwrap();
        let mut audio = Audio::default();
        let mut frames = |turn| audio.frames(&Heard { file: file.clone(), turn }, 2).unwrap().to_vec();
        assert_eq!(frames(0), [0.0, 1.0, 2.0, 10.0, 11.0, 12.0]);
        assert_eq!(frames(4), [1.0, 2.0, 0.0, 11.0, 12.0, 10.0]);
    }
}
