//! `photofinish open`: shows the page of a run in the browser.

use std::process::{Command, Stdio};

use plan::{Failure, Result};

use super::report::latest;
use crate::cli::OpenArgs;
use crate::output::print;

/// The page of a run, a study or a collection.
const PAGES: [&str; 2] = ["report.html", "index.html"];

pub(crate) fn open(args: &OpenArgs) -> Result<u8> {
    let directory = match &args.directory {
        Some(directory) => directory.clone(),
        None => latest(&args.from.directory()?)?,
    };
    let page = PAGES.map(|name| directory.join(name)).into_iter().find(|page| page.is_file());
    let page = page.ok_or_else(|| {
        let directory = directory.display();
        Failure::usage(format!("{directory} has no report.html: `photofinish report {directory}` writes it"))
    })?;
    print(&format!("{}\n", page.display()))?;
    let is_shown = OPENERS.iter().any(|(program, before)| {
        #[expect(clippy::disallowed_methods, reason = "the system's own program shows the page")]
        let mut opener = Command::new(program);
        opener.args(*before).arg(&page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        opener.status().is_ok_and(|status| status.success())
    });
    if !is_shown {
        untrusted::say!("no program on this machine opens pages: open the file above in a browser");
    }
    Ok(0)
}

/// Programs that show a file as the user's desktop does, with the words before the file.
const OPENERS: &[(&str, &[&str])] = if cfg!(target_os = "macos") {
    &[("open", &[])]
} else if cfg!(windows) {
    &[("cmd", &["/C", "start", ""])]
} else {
    &[("xdg-open", &[]), ("wslview", &[])]
};
