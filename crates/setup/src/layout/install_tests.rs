use std::cell::Cell;
use std::io::Write;

use anyhow::bail;
use sha2::{Digest, Sha256};
use zip::write::{SimpleFileOptions, ZipWriter};

use super::*;

const PIECE: Piece = Piece::Libtorch;

/// A source of one tiny wheel that counts how often it is asked.
struct Source {
    wheel: Vec<u8>,
    asked: Cell<usize>,
}

impl Fetch for Source {
    fn fetch(&self, _: &Wheel, directory: &Path, _: Reporter) -> Result<PathBuf> {
        self.asked.set(self.asked.get() + 1);
        let file = directory.join("some.whl");
        fs::write(&file, &self.wheel)?;
        Ok(file)
    }
}

struct Broken;

impl Fetch for Broken {
    fn fetch(&self, _: &Wheel, directory: &Path, _: Reporter) -> Result<PathBuf> {
        fs::write(directory.join("half.whl"), "PK")?;
        bail!("the network is off")
    }
}

struct Fixture {
    cache: tempfile::TempDir,
    pin: Pin,
    source: Source,
}

const MEMBERS: [(&str, &str); 4] = [
    ("t/lib/a.so", "library"),
    ("t/include/x/y.h", "header"),
    ("t/include/z.h", ""),
    ("t/other", "unwanted"),
];

impl Fixture {
    fn new() -> Self {
        Self::with_members(&MEMBERS)
    }

    fn with_members(members: &[(&str, &str)]) -> Self {
        let mut writer = ZipWriter::new(std::io::Cursor::new(Vec::new()));
        for (name, text) in members {
            writer.start_file(*name, SimpleFileOptions::default()).unwrap();
            writer.write_all(text.as_bytes()).unwrap();
        }
        let wheel = writer.finish().unwrap().into_inner();
        let rules = [("t/lib/a.so", "lib/a.so"), ("t/include/", "include/")];
        let pin = Pin {
            version: "1.0".into(),
            directory: "piece-1.0".into(),
            wheels: vec![Wheel {
                requirement: "t==1.0".into(),
                sha256: Sha256::digest(&wheel).iter().map(|byte| format!("{byte:02x}")).collect(),
                bytes: wheel.len() as u64,
                extract: rules.map(|(from, to)| (from.to_owned(), to.to_owned())).into(),
            }],
            write: [("lib/link.so".to_owned(), "INPUT(a.so)\n".to_owned())].into(),
        };
        Self { cache: tempfile::tempdir().unwrap(), pin, source: Source { wheel, asked: Cell::new(0) } }
    }

    fn install(&self) -> Result<()> {
        self.install_from(&self.source)
    }

    fn install_from(&self, source: &dyn Fetch) -> Result<()> {
        install(self.cache.path(), PIECE, &self.pin, source, Reporter::new(true))
    }

    fn is_whole(&self) -> bool {
        receipt::is_whole(self.cache.path(), PIECE, &self.pin)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.cache.path().join("piece-1.0").join(name)
    }

    /// Names in the cache directory, except the lock file.
    fn entries(&self) -> Vec<String> {
        let entries = fs::read_dir(self.cache.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| name != ".setup.lock").collect();
        names.sort();
        names
    }
}

#[test]
fn a_piece_holds_what_its_pin_names_and_nothing_else() {
    let fixture = Fixture::new();
    fixture.install().unwrap();
    assert_eq!(fs::read_to_string(fixture.file("lib/a.so")).unwrap(), "library");
    assert_eq!(fs::read_to_string(fixture.file("lib/link.so")).unwrap(), "INPUT(a.so)\n");
    assert_eq!(fs::read_to_string(fixture.file("include/x/y.h")).unwrap(), "header");
    assert!(fixture.file("include/z.h").is_file());
    assert!(!fixture.file("other").exists());
    assert_eq!(fixture.entries(), ["piece-1.0"], "wheels and staging are gone");
}

#[test]
fn a_piece_that_is_there_is_not_fetched_again() {
    let fixture = Fixture::new();
    fixture.install().unwrap();
    fixture.install_from(&Broken).unwrap();
    assert_eq!(fixture.source.asked.get(), 1);
}

#[test]
fn a_wheel_with_another_sha256_is_refused() {
    let mut fixture = Fixture::new();
    fixture.pin.wheels[0].sha256 = "0".repeat(64);
    let error = fixture.install().unwrap_err().to_string();
    assert!(error.contains("t==1.0") && error.contains(&"0".repeat(64)), "{error}");
    assert!(!fixture.is_whole());
    assert_eq!(fixture.entries(), [""; 0], "nothing is left behind");
}

#[test]
fn a_wheel_that_lacks_a_member_is_refused() {
    let fixture = Fixture::with_members(&MEMBERS[1..]);
    let error = format!("{:#}", fixture.install().unwrap_err());
    assert!(error.contains("t==1.0") && error.contains("t/lib/a.so"), "{error}");
    assert!(!fixture.is_whole());
}

#[test]
fn a_member_that_climbs_out_is_refused() {
    let fixture = Fixture::with_members(&[MEMBERS[0], ("t/include/../../../x", "")]);
    let error = format!("{:#}", fixture.install().unwrap_err());
    assert!(error.contains("leaves"), "{error}");
    assert!(!fixture.is_whole());
}

#[test]
fn a_failed_fetch_leaves_nothing_and_the_next_succeeds() {
    let fixture = Fixture::new();
    let error = fixture.install_from(&Broken).unwrap_err();
    assert_eq!(error.to_string(), "the network is off");
    assert_eq!(fixture.entries(), [""; 0]);
    fixture.install().unwrap();
    assert!(fixture.is_whole());
}

#[test]
fn a_directory_without_receipt_is_not_used() {
    let fixture = Fixture::new();
    fs::create_dir_all(fixture.file("lib")).unwrap();
    fs::write(fixture.file("lib/a.so"), "libr").unwrap();
    fs::write(fixture.file("lib/left-over.so"), "").unwrap();
    assert!(!fixture.is_whole());
    fixture.install().unwrap();
    assert_eq!(fs::read_to_string(fixture.file("lib/a.so")).unwrap(), "library");
    assert!(!fixture.file("lib/left-over.so").exists());
}

#[test]
fn what_a_killed_set_up_staged_is_removed_unused() {
    let fixture = Fixture::new();
    let stale = fixture.cache.path().join(".setup-stale");
    fs::create_dir_all(stale.join("piece/lib")).unwrap();
    fs::write(stale.join("piece/lib/a.so"), "half").unwrap();
    fixture.install().unwrap();
    assert_eq!(fs::read_to_string(fixture.file("lib/a.so")).unwrap(), "library");
    assert_eq!(fixture.entries(), ["piece-1.0"]);
}

#[test]
fn sweeping_spares_a_set_up_at_work() {
    let fixture = Fixture::new();
    let lock = crate::receipt::lock(fixture.cache.path(), Reporter::new(true)).unwrap();
    let at_work = crate::receipt::directory(fixture.cache.path(), &lock).unwrap();
    crate::receipt::sweep(fixture.cache.path()).unwrap();
    assert!(at_work.path().exists());
    let left_behind = at_work.keep();
    drop(lock);
    crate::receipt::sweep(fixture.cache.path()).unwrap();
    assert!(!left_behind.exists());
}

#[test]
fn a_file_of_the_wrong_size_or_none_is_installed_again() {
    let fixture = Fixture::new();
    fixture.install().unwrap();
    fs::write(fixture.file("lib/a.so"), "librar").unwrap();
    assert!(!fixture.is_whole());
    fixture.install().unwrap();
    assert_eq!(fs::read_to_string(fixture.file("lib/a.so")).unwrap(), "library");
    fs::remove_file(fixture.file("include/x/y.h")).unwrap();
    fixture.install().unwrap();
    assert!(fixture.is_whole());
    assert_eq!(fixture.source.asked.get(), 3);
}

/// Changes a file's contents, but neither its size nor its time of change.
fn change_secretly(file: &Path, text: &str) {
    let modified = fs::metadata(file).unwrap().modified().unwrap();
    let mut opened = fs::File::options().write(true).open(file).unwrap();
    opened.write_all(text.as_bytes()).unwrap();
    opened.set_modified(modified).unwrap();
}

#[test]
fn a_library_that_seems_to_have_changed_is_hashed_again() {
    let fixture = Fixture::new();
    fixture.install().unwrap();
    // Another inode and another time, but the same contents: as after a copy of the cache.
    let library = fixture.file("lib/a.so");
    fs::remove_file(&library).unwrap();
    fs::write(&library, "library").unwrap();
    assert!(fixture.is_whole());
    // The same size, but other contents.
    fs::write(&library, "LIBRARY").unwrap();
    assert!(!fixture.is_whole());
    fixture.install().unwrap();
    assert_eq!(fs::read_to_string(&library).unwrap(), "library");
    assert_eq!(fixture.source.asked.get(), 2);
}

#[test]
fn a_deep_look_hashes_every_file() {
    let fixture = Fixture::new();
    fixture.install().unwrap();
    let look = |look| receipt::state(fixture.cache.path(), PIECE, &fixture.pin, look);
    assert_eq!(look(Look::Deep), State::Whole);
    change_secretly(&fixture.file("lib/a.so"), "LIBRARY");
    assert_eq!(look(Look::Usual), State::Whole, "this is what a deep look is for");
    let State::Damaged(what) = look(Look::Deep) else { panic!("the change was not found") };
    assert!(what.contains("lib/a.so has sha256"), "{what}");
}

#[test]
fn a_changed_pin_installs_again() {
    let mut fixture = Fixture::new();
    fixture.install().unwrap();
    fixture.pin.write.insert("build-version".into(), "1.0\n".into());
    assert!(!fixture.is_whole());
    fixture.install().unwrap();
    assert!(fixture.is_whole());
    assert!(fixture.file("build-version").is_file());
}

#[test]
fn a_torn_receipt_counts_as_none() {
    let fixture = Fixture::new();
    fixture.install().unwrap();
    let receipt = fixture.file(&receipt::file_name(PIECE));
    let text = fs::read_to_string(&receipt).unwrap();
    fs::write(&receipt, &text[..text.len() / 2]).unwrap();
    assert!(!fixture.is_whole());
}

#[test]
fn files_of_others_in_the_directory_stay() {
    let fixture = Fixture::new();
    fs::create_dir_all(fixture.file("")).unwrap();
    fs::write(fixture.file("mine.gguf"), "mine").unwrap();
    fixture.install().unwrap();
    assert_eq!(fs::read_to_string(fixture.file("mine.gguf")).unwrap(), "mine");
}

#[test]
fn of_two_set_ups_at_once_one_does_the_work() {
    struct Slow(std::sync::atomic::AtomicUsize, Vec<u8>);
    impl Fetch for Slow {
        fn fetch(&self, _: &Wheel, directory: &Path, _: Reporter) -> Result<PathBuf> {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            std::thread::sleep(std::time::Duration::from_millis(50));
            let file = directory.join("some.whl");
            fs::write(&file, &self.1)?;
            Ok(file)
        }
    }
    let Fixture { cache, pin, source } = Fixture::new();
    let slow = Slow(Default::default(), source.wheel);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| install(cache.path(), PIECE, &pin, &slow, Reporter::new(true)).unwrap());
        }
    });
    assert!(receipt::is_whole(cache.path(), PIECE, &pin));
    assert_eq!(slow.0.into_inner(), 1);
}
