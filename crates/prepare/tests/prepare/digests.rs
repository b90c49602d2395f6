//! A source is hashed once, and again when it may have changed.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bundle::Precision;
use prepare::{Source, prepare};
use tempfile::TempDir;

use crate::common::{Model, request};

const WEIGHTS: &str = "model.safetensors";

struct Scene {
    source: TempDir,
    bundles: TempDir,
}

impl Scene {
    /// A model with files of this age, prepared once.
    fn aged(age: Duration) -> (Scene, PathBuf) {
        let scene =
            Scene { source: Model::tiny("qwen3-qknorm").write(), bundles: tempfile::tempdir().unwrap() };
        for file in ["config.json", WEIGHTS] {
            set_time(&scene.source.path().join(file), SystemTime::now() - age);
        }
        let first = scene.prepare();
        (scene, first)
    }

    fn prepare(&self) -> PathBuf {
        let source = Source::Directory(self.source.path().into());
        prepare(&request(source, &[Precision::F32], self.bundles.path())).unwrap()
    }

    /// Changes one weight and restores the file's time, so that the change is only found by reading the file.
    fn change_unnoticed(&self) {
        let path = self.source.path().join(WEIGHTS);
        let time = std::fs::metadata(&path).unwrap().modified().unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        set_time(&path, time);
    }
}

fn set_time(path: &Path, time: SystemTime) {
    File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

const LONG_AGO: Duration = Duration::from_secs(3600);

#[test]
fn an_unchanged_source_is_not_read_again() {
    let (scene, first) = Scene::aged(LONG_AGO);
    scene.change_unnoticed();
    assert_eq!(scene.prepare(), first);
}

#[test]
fn a_source_of_another_time_is_read_again() {
    let (scene, first) = Scene::aged(LONG_AGO);
    set_time(&scene.source.path().join(WEIGHTS), SystemTime::now() - LONG_AGO / 2);
    assert_eq!(scene.prepare(), first, "the same bytes are the same bundle");
    scene.change_unnoticed();
    assert_eq!(scene.prepare(), first, "the digest was remembered under the new time");
    set_time(&scene.source.path().join(WEIGHTS), SystemTime::now() - LONG_AGO / 4);
    assert_ne!(scene.prepare(), first);
}

#[test]
fn a_source_that_changed_just_now_is_not_trusted() {
    let (scene, first) = Scene::aged(Duration::ZERO);
    scene.change_unnoticed();
    assert_ne!(scene.prepare(), first);
}

#[test]
fn damaged_digests_cost_a_reading_and_no_more() {
    let (scene, first) = Scene::aged(LONG_AGO);
    std::fs::write(scene.bundles.path().join(".sources.json"), "{").unwrap();
    assert_eq!(scene.prepare(), first);
    scene.change_unnoticed();
    assert_eq!(scene.prepare(), first, "they were written anew");
}
