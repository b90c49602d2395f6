//! Appends the record on standard input to a history again and again, each time under the next run's name, and
//! prints a run once it is saved. The tests kill it.
//!
//! `append FILE RUN COUNT < RECORD`: runs `RUN-0` … , COUNT records of each.

use std::io::Read;

use comparison::history;
use driver::history_file;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(|word| word.to_string_lossy()).collect();
    let [file, run, count] = arguments.as_slice() else {
        return Err("usage: append FILE RUN COUNT < RECORD".into());
    };
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let mut records = vec![serde_json::from_str::<history::Record>(&text)?; count.parse()?];
    for number in 0.. {
        for record in &mut records {
            record.run = format!("{run}-{number}");
        }
        history_file::append((**file).as_ref(), &records)?;
        println!("{run}-{number}");
    }
    Ok(())
}
