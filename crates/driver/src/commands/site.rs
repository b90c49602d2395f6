//! `photofinish site`: the static site of the published results.

use std::path::Path;

use judge::records::collection::Published;
use plan::{Failure, Result};

use super::collection::sound;
use super::outputs::report_outputs;
use crate::cli::SiteArgs;
use crate::output::print;

pub(crate) fn site(args: &SiteArgs) -> Result<u8> {
    let checked = sound(::collection::check(&args.collection)?)?;
    let base = args.url.as_deref().map(|url| url.trim_end_matches('/'));
    let site = render::page::site::files(&checked.entries, base).map_err(Failure::failed)?;
    let out = std::path::absolute(&args.out).map_err(|error| cannot(&args.out, error))?;
    let beside = out.parent().unwrap_or(&out);
    std::fs::create_dir_all(beside).map_err(|error| cannot(beside, error))?;
    // An earlier site stays as it is until this one is complete.
    let place = tempfile::Builder::new()
        .prefix(".site-")
        .tempdir_in(beside)
        .map_err(|error| cannot(beside, error))?;
    for (name, contents) in site {
        write(place.path(), &name, &contents)?;
    }
    for entry in &checked.entries {
        run(entry, &args.collection, place.path())?;
    }
    replace(place, &out)?;
    print(&format!("{}\n", args.out.join("index.html").display()))?;
    Ok(0)
}

fn cannot(path: &Path, error: std::io::Error) -> Failure {
    Failure::usage(format!("cannot write the site to {}: {error}; name another directory", path.display()))
}

fn write(directory: &Path, name: &str, contents: &[u8]) -> Result<()> {
    let path = directory.join(name);
    let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    made.and_then(|()| std::fs::write(&path, contents)).map_err(|error| cannot(&path, error))
}

/// Writes the page of a whole run, and the files that were submitted.
fn run(entry: &Published, collection: &Path, site: &Path) -> Result<()> {
    let to = site.join(render::page::site::RUNS).join(&entry.name);
    let outputs = report_outputs(&entry.report, &entry.evidence);
    if let Some(reason) = outputs.missing {
        return Err(Failure::failed(format!("{}: {reason}", entry.name)));
    }
    for (name, contents) in outputs.files {
        write(&to, &name, &contents)?;
    }
    // After the outputs: the report is the one that was submitted.
    for name in ::collection::names() {
        let path = collection.join(&entry.name).join(name);
        let contents = untrusted::file::read(&path, untrusted::file::RESULTS);
        write(
            &to,
            name,
            &contents.map_err(|error| Failure::failed(format!("cannot read {}: {error}", path.display())))?,
        )?;
    }
    Ok(())
}

/// Moves the new site to its place. Only an earlier site or an empty directory is replaced.
fn replace(place: tempfile::TempDir, out: &Path) -> Result<()> {
    if out.exists() {
        let is_empty = std::fs::read_dir(out).map_err(|error| cannot(out, error))?.next().is_none();
        if !is_empty && !out.join(render::page::site::DATA).is_file() {
            return Err(Failure::usage(format!(
                "{} holds something else than a site: name an empty directory, or a new one",
                out.display()
            )));
        }
        std::fs::rename(out, place.path().join(".earlier")).map_err(|error| cannot(out, error))?;
    }
    let place = place.keep();
    let earlier = place.join(".earlier");
    if let Err(error) = std::fs::rename(&place, out) {
        // Best effort: the first error is the one to report.
        let _ = std::fs::rename(&earlier, out);
        return Err(cannot(out, error));
    }
    #[cfg(unix)]
    std::fs::set_permissions(out, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .map_err(|error| cannot(out, error))?;
    let earlier = out.join(".earlier");
    if earlier.exists() {
        std::fs::remove_dir_all(&earlier).map_err(|error| cannot(&earlier, error))
    } else {
        Ok(())
    }
}
