//! The part of the Hugging Face hub that is needed to fetch one repository.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

use serde_json::json;

use crate::repository::{COMMIT, content};

pub(crate) struct Hub {
    pub(crate) endpoint: String,
}

impl Hub {
    /// A hub with these files of the repository owner/tiny; it does not serve files that end in `.bin`.
    pub(crate) fn start(files: &[&str]) -> Hub {
        Hub::at(COMMIT, files)
    }

    /// A hub with this name of its newest commit.
    pub(crate) fn at(commit: &str, files: &[&str]) -> Hub {
        let given: Vec<_> = files.iter().copied().filter(|file| !file.ends_with(".bin")).collect();
        Hub::giving(&given, commit, files)
    }

    /// A hub with these files only, even if it lists others.
    pub(crate) fn giving(given: &[&str], commit: &str, listed: &[&str]) -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let siblings: Vec<_> = listed.iter().map(|file| json!({ "rfilename": file })).collect();
        let info = json!({ "sha": commit, "siblings": siblings }).to_string().into_bytes();
        let mut pages = HashMap::from([("/api/models/owner/tiny/revision/main".to_owned(), info)]);
        for file in given {
            pages.insert(format!("/owner/tiny/resolve/{commit}/{file}"), content(file));
        }
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                answer(stream.unwrap(), &pages);
            }
        });
        Hub { endpoint }
    }
}

fn answer(mut stream: TcpStream, pages: &HashMap<String, Vec<u8>>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let Some(request) = lines.next() else { return };
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let range = lines.take_while(|line| !line.is_empty()).find_map(|line| {
        let range = line.to_lowercase().strip_prefix("range: bytes=")?.to_owned();
        let (first, last) = range.split_once('-')?;
        Some((first.parse::<usize>().ok()?, last.parse::<usize>().ok()))
    });
    let Some(page) = pages.get(&path) else {
        let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        return;
    };
    let (first, last) = range.unwrap_or((0, None));
    let body = &page[first..last.map_or(page.len(), |last| last + 1)];
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {first}-{}/{}\r\n\
         ETag: \"{}\"\r\nX-Repo-Commit: {COMMIT}\r\nConnection: close\r\n\r\n",
        body.len(),
        first + body.len() - 1,
        page.len(),
        path.rsplit('/').next().unwrap_or_default().replace('.', "-"),
    );
    // A client that hangs up early has all it needs.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
}
