use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use zip::CompressionMethod;
use zip::write::{SimpleFileOptions, ZipWriter};

use super::*;
use crate::Piece;
use crate::pins::Pin;

/// How a server answers for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// With the part that is asked for.
    Ranges,
    Whole,
    /// With a part at a time: each connection breaks after so many bytes.
    Breaks(usize),
    RefusesRanges,
    Lacks,
}

/// A page with one wheel: a mirror. It records where each request for the wheel begins.
struct Server {
    url: String,
    asked: Arc<Mutex<Vec<usize>>>,
}

const NAME: &str = "piece-1.0-py3-none-any.whl";

impl Server {
    fn new(manner: Manner, wheel: &[u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (wheel, record) = (wheel.to_vec(), Arc::clone(&asked));
        // It ends with the tests.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = answer(stream, manner, &wheel, &record);
            }
        });
        Self { url, asked }
    }

    fn asked(&self) -> Vec<usize> {
        self.asked.lock().unwrap().clone()
    }
}

fn answer(
    mut stream: TcpStream,
    manner: Manner,
    wheel: &[u8],
    asked: &Mutex<Vec<usize>>,
) -> std::io::Result<()> {
    let head: Vec<String> = BufReader::new(stream.try_clone()?)
        .lines()
        .map_while(Result::ok)
        .take_while(|line| !line.is_empty())
        .collect();
    let mut send = |status: &str, length: usize, body: &[u8]| {
        write!(stream, "HTTP/1.1 {status}\r\nContent-Type: text/html\r\nConnection: close\r\n")?;
        write!(stream, "Content-Length: {length}\r\n\r\n")?;
        stream.write_all(body)
    };
    if !head.first().is_some_and(|line| line.contains(".whl") || line.contains(".tgz")) {
        let page = format!("<a href=\"{NAME}\">{NAME}</a>");
        return send("200 OK", page.len(), page.as_bytes());
    }
    let range =
        head.iter().find_map(|line| line.to_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
    let begin = range.as_deref().map_or(0, |range| range.trim_end_matches('-').parse().unwrap());
    asked.lock().unwrap().push(begin);
    match manner {
        Manner::Lacks => send("404 Not Found", 0, b""),
        Manner::RefusesRanges if begin > 0 => send("403 Forbidden", 0, b""),
        Manner::Whole | Manner::RefusesRanges => send("200 OK", wheel.len(), wheel),
        Manner::Ranges | Manner::Breaks(_) if begin >= wheel.len() => send("416 Unsatisfiable", 0, b""),
        Manner::Ranges => send("206 Partial Content", wheel.len() - begin, &wheel[begin..]),
        Manner::Breaks(bytes) => {
            let end = wheel.len().min(begin + bytes);
            send("206 Partial Content", wheel.len() - begin, &wheel[begin..end])
        }
    }
}

/// A wheel that pip takes.
fn wheel() -> Vec<u8> {
    let mut writer = ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, text) in [
        ("weights", "x".repeat(100_000).as_str()),
        ("piece-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: piece\nVersion: 1.0\n"),
        ("piece-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
        ("piece-1.0.dist-info/RECORD", ""),
    ] {
        writer.start_file(name, stored).unwrap();
        writer.write_all(text.as_bytes()).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

struct Fixture {
    cache: tempfile::TempDir,
    wanted: Wanted,
    bytes: Vec<u8>,
}

impl Fixture {
    fn new() -> Self {
        Self::with_requirement("piece==1.0")
    }

    fn with_requirement(requirement: &str) -> Self {
        let bytes = wheel();
        let wheel = Wheel {
            requirement: requirement.into(),
            sha256: receipt::hexadecimal(&Sha256::digest(&bytes)),
            bytes: bytes.len() as u64,
            extract: [("weights".to_owned(), "weights".to_owned())].into(),
        };
        let pin =
            Pin { version: "1.0".into(), directory: "piece".into(), wheels: vec![wheel], write: [].into() };
        let instead = "do without".to_owned();
        let wanted = Wanted { name: Piece::Model.to_string(), pin, tags: vec!["any".to_owned()], instead };
        Self { cache: tempfile::tempdir().unwrap(), wanted, bytes }
    }

    fn wheel(&self) -> &Wheel {
        &self.wanted.pin.wheels[0]
    }

    fn partial(&self) -> PathBuf {
        partial(&directory(self.cache.path()), self.wheel())
    }

    /// An earlier download that came so far.
    fn begun(self, bytes: usize) -> Self {
        fs::create_dir_all(directory(self.cache.path())).unwrap();
        fs::write(self.partial(), &self.bytes[..bytes]).unwrap();
        self
    }

    fn downloads(&self, from: Mirror, directory: &Path, run: impl FnOnce(&Downloads<'_>)) {
        let options: PipOptions =
            toml::from_str("python-version = \"3.11\"\nimplementation = \"cp\"\ntags = {}").unwrap();
        let scratch = tempfile::tempdir_in(self.cache.path()).unwrap();
        let (directory, reporter) = (directory.to_owned(), Reporter::new(true));
        let mirror = Some(from);
        run(&Downloads { options: &options, mirror, directory, scratch: scratch.path(), reporter });
    }

    /// Installs the piece from there.
    fn install(&self, from: Mirror) -> Result<()> {
        let mut outcome = Ok(());
        let reporter = Reporter::new(true);
        self.downloads(from, &directory(self.cache.path()), |downloads| {
            let fetch: crate::layout::Fetch<'_> = &|wheels, _| Ok(downloads.all(wheels));
            let wanted = std::slice::from_ref(&self.wanted);
            let failures = crate::layout::install(self.cache.path(), wanted, fetch, reporter).unwrap();
            outcome = failures.into_values().next().map_or(Ok(()), Err);
        });
        outcome
    }

    fn install_by(&self, server: &Server) -> Result<()> {
        self.install(Mirror::Page(server.url.clone()))
    }
}

#[test]
fn a_download_goes_on_where_it_stopped_if_the_server_can() {
    let length = wheel().len();
    for (manner, begun, asked) in [
        (Manner::Ranges, 40_000, &[40_000][..]),
        // It starts over.
        (Manner::Whole, 40_000, &[40_000]),
        (Manner::Ranges, length, &[]),
        // Within one run.
        (Manner::Breaks(40_000), 0, &[0, 40_000, 80_000]),
    ] {
        let fixture = Fixture::new().begun(begun);
        let server = Server::new(manner, &fixture.bytes);
        fixture.install_by(&server).unwrap();
        assert_eq!(server.asked(), asked, "{manner:?}");
        assert_eq!(fs::read(fixture.cache.path().join("piece/weights")).unwrap().len(), 100_000);
        assert!(!fixture.partial().exists(), "{manner:?}: it is deleted once it is unpacked");
    }
}

#[test]
fn a_server_that_refuses_is_asked_for_the_whole_by_pip() {
    let fixture = Fixture::new().begun(40_000);
    let server = Server::new(Manner::RefusesRanges, &fixture.bytes);
    fixture.install_by(&server).unwrap();
    assert_eq!(server.asked(), [40_000, 0]);
    assert!(!fixture.partial().exists());
    let fixture = Fixture::new();
    let server = Server::new(Manner::Lacks, &fixture.bytes);
    let error = fixture.install_by(&server).unwrap_err().to_string();
    assert!(error.contains("piece==1.0") && error.contains("404"), "{error}");
    assert_eq!(server.asked(), [0, 0], "by the script, then by pip");
}

#[test]
fn a_lost_connection_keeps_what_came() {
    let fixture = Fixture::new().begun(40_000);
    let server = Server::new(Manner::Breaks(0), &fixture.bytes);
    let error = fixture.install_by(&server).unwrap_err().to_string();
    assert!(error.starts_with("cannot download piece==1.0 from PHOTOFINISH_MIRROR=http://"), "{error}");
    assert_eq!(server.asked(), [40_000; 4]);
    assert_eq!(fs::read(fixture.partial()).unwrap(), fixture.bytes[..40_000]);
}

#[test]
fn a_file_with_a_wrong_hash_is_refused_and_removed() {
    let mut fixture = Fixture::new();
    fixture.bytes[50] ^= 1;
    let server = Server::new(Manner::Ranges, &fixture.bytes);
    let error = fixture.install_by(&server).unwrap_err().to_string();
    assert!(error.starts_with("piece==1.0: the file that came has sha256"), "{error}");
    assert!(!fixture.partial().exists());
}

#[test]
fn a_mirrors_directory_serves_any_file_with_the_hash_and_keeps_it() {
    for requirement in ["piece==1.0", "npm:@some/piece==1.0"] {
        let mut fixture = Fixture::with_requirement(requirement);
        let mirror = tempfile::tempdir().unwrap();
        let from = Mirror::Directory(mirror.path().to_owned());
        let error = fixture.install(from.clone()).unwrap_err().to_string();
        let path = mirror.path().display();
        assert!(error.starts_with(&format!("PHOTOFINISH_MIRROR={path} holds no file of {requirement};")));
        let file = mirror.path().join("any");
        fs::write(&file, &fixture.bytes).unwrap();
        // An archive of npm's would have to be another.
        fixture.wanted.pin.wheels[0].extract.clear();
        fixture.downloads(from, mirror.path(), |downloads| {
            assert_eq!(downloads.one(&fixture.wanted, fixture.wheel()).unwrap().file, file);
        });
    }
}

#[test]
fn npms_file_has_its_usual_name_on_a_mirrors_page() {
    assert_eq!(name_by_npm("@some/piece@1.0"), "some-piece-1.0.tgz");
    let fixture = Fixture::with_requirement("npm:@some/piece==1.0");
    let server = Server::new(Manner::Ranges, &fixture.bytes);
    fixture.downloads(Mirror::Page(server.url.clone()), fixture.cache.path(), |downloads| {
        let archive = downloads.one(&fixture.wanted, fixture.wheel()).unwrap();
        assert_eq!(archive.name, "some-piece-1.0.tgz");
        assert_eq!(fs::read(archive.file).unwrap(), fixture.bytes);
    });
}

#[test]
fn files_are_kept_under_their_own_names_and_come_once() {
    let fixture = Fixture::new();
    let server = Server::new(Manner::Ranges, &fixture.bytes);
    let to = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        fixture.downloads(Mirror::Page(server.url.clone()), to.path(), |downloads| {
            downloads.keep(&[(&fixture.wanted, fixture.wheel())]).unwrap();
        });
        let names = fs::read_dir(to.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), [NAME]);
    }
    assert_eq!(server.asked(), [0]);
    fixture.install(Mirror::Directory(to.path().to_owned())).unwrap();
    assert!(to.path().join(NAME).exists(), "a mirror keeps its files");
}

#[test]
fn a_mirror_is_a_directory_or_a_url() {
    assert_eq!(Mirror::named("".into()).unwrap(), None);
    assert_eq!(Mirror::named("http://a/b".into()).unwrap(), Some(Mirror::Page("http://a/b/".into())));
    let refusal = Mirror::named("no/such".into()).unwrap_err().0;
    assert!(refusal.starts_with("PHOTOFINISH_MIRROR=no/such is no directory that can be read (No such"));
}

#[test]
fn sweeping_removes_only_downloads_of_last_week() {
    let (old, new) = (Fixture::new().begun(1), Fixture::new().begun(1));
    let file = File::options().write(true).open(old.partial()).unwrap();
    file.set_modified(std::time::SystemTime::now() - receipt::ABANDONED - Duration::from_secs(60)).unwrap();
    for fixture in [&old, &new] {
        receipt::sweep(fixture.cache.path()).unwrap();
    }
    assert!(!directory(old.cache.path()).exists() && new.partial().exists());
}

#[test]
fn npm_says_what_is_wrong_between_a_code_and_advice() {
    let said = b"npm error code ETARGET\nnpm error notarget No matching version found.\nnpm error notarget In most\n";
    assert_eq!(npm_cause(said).as_deref(), Some("notarget No matching version found."));
    assert_eq!(npm_cause(b"ERROR: pip's\n"), None);
}
