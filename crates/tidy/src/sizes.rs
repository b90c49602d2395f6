//! Rules on the size of files and functions in Rust and Python, and the longest of both.

use std::cmp::Reverse;
use std::fmt;

use anyhow::{Result, anyhow};
use syn::visit::{self, Visit};

use crate::Finding;
use crate::files::place_of;

const LONG_FILE: &str = "a file has at most 500 lines";
const LONG_FUNCTION: &str = "a function has at most 80 lines";
const LONGEST_FILE: usize = 500;
const LONGEST_FUNCTION: usize = 80;
const SHOWN: usize = 10;

/// Files and functions, the longest first.
pub(crate) struct Sizes {
    files: Vec<Size>,
    functions: Vec<Size>,
}

struct Size {
    file: String,
    /// The function's first line and name.
    function: Option<(usize, String)>,
    lines: usize,
}

impl Sizes {
    pub(crate) fn read(texts: &[(String, String)]) -> Result<Self> {
        let mut sizes = Self { files: Vec::new(), functions: Vec::new() };
        for (file, text) in texts {
            let functions = match file.rsplit_once('.') {
                Some((_, "rs")) => rust(text).map_err(|error| anyhow!("{file}: {error}"))?,
                Some((_, "py")) => python(text),
                _ => continue,
            };
            let size = |function, lines| Size { file: file.clone(), function, lines };
            sizes.files.push(size(None, text.lines().count()));
            let functions = functions.into_iter();
            sizes.functions.extend(functions.map(|found| size(Some((found.first, found.name)), found.lines)));
        }
        sizes.files.sort_by_key(|size| Reverse(size.lines));
        sizes.functions.sort_by_key(|size| Reverse(size.lines));
        Ok(sizes)
    }

    pub(crate) fn check(&self) -> impl Iterator<Item = Finding> {
        let finding = |size: &Size, rule, remedy| Finding {
            rule,
            place: place_of(&size.file),
            found: format!("{size}"),
            remedy,
        };
        let files = self.files.iter().filter(|size| size.lines > LONGEST_FILE);
        let functions = self.functions.iter().filter(|size| size.lines > LONGEST_FUNCTION);
        files.map(move |size| finding(size, LONG_FILE, "ask what it hides, and move that out")).chain(
            functions.map(move |size| {
                finding(size, LONG_FUNCTION, "move steps with a purpose of their own into functions")
            }),
        )
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, sizes) in [("files", &self.files), ("functions", &self.functions)] {
            writeln!(f, "the longest {what}:")?;
            for size in sizes.iter().take(SHOWN) {
                writeln!(f, "  {size}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.function {
            Some((first, name)) => write!(f, "{}:{first}: {name} has {} lines", self.file, self.lines),
            None => write!(f, "{} has {} lines", self.file, self.lines),
        }
    }
}

struct Function {
    name: String,
    first: usize,
    lines: usize,
}

fn rust(text: &str) -> syn::Result<Vec<Function>> {
    let mut functions = Functions::default();
    functions.visit_file(&syn::parse_file(text)?);
    Ok(functions.0)
}

#[derive(Default)]
struct Functions(Vec<Function>);

impl Functions {
    fn measure(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let first = signature.fn_token.span.start().line;
        let lines = block.brace_token.span.close().end().line - first + 1;
        self.0.push(Function { name: signature.ident.to_string(), first, lines });
    }
}

impl Visit<'_> for Functions {
    fn visit_item_fn(&mut self, function: &syn::ItemFn) {
        self.measure(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &syn::ImplItemFn) {
        self.measure(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.measure(&function.sig, block);
        }
        visit::visit_trait_item_fn(self, function);
    }
}

/// Functions by their indentation: each ends before the next line of code that is indented no deeper than its `def`.
fn python(text: &str) -> Vec<Function> {
    let lines: Vec<(usize, usize, &str)> = text
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.len() - line.trim_start().len(), line.trim_start()))
        .filter(|(_, _, code)| !code.is_empty() && !code.starts_with('#'))
        .collect();
    let mut functions = Vec::new();
    for (at, &(first, indent, code)) in lines.iter().enumerate() {
        let code = code.strip_prefix("async ").unwrap_or(code);
        let Some(signature) = code.strip_prefix("def ") else { continue };
        // A bracket closes a signature of several lines.
        let inside = |(_, depth, code): &&(usize, usize, &str)| *depth > indent || code.starts_with(')');
        let last = lines[at + 1..].iter().take_while(inside).last().map_or(first, |(last, _, _)| *last);
        let name = signature.split(['(', '[']).next().unwrap_or_default().to_owned();
        functions.push(Function { name, first, lines: last - first + 1 });
    }
    functions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(name: &str, text: &str) -> Sizes {
        Sizes::read(&[(name.to_owned(), text.to_owned())]).unwrap()
    }

    /// The findings on one file.
    fn found(name: &str, text: &str) -> Vec<String> {
        sizes(name, text).check().map(|finding| finding.found).collect()
    }

    fn function(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    work();\n".repeat(lines - 2))
    }

    #[test]
    fn a_long_function_is_found_wherever_it_stands() {
        assert_eq!(found("x.rs", &function(80)), [""; 0]);
        assert_eq!(found("x.rs", &function(81)), ["x.rs:1: long has 81 lines"]);
        for around in ["impl X", "trait X", "mod x"] {
            let text = format!("{around} {{\n{}}}\n", function(81));
            assert_eq!(found("x.rs", &text), ["x.rs:2: long has 81 lines"], "{around}");
        }
    }

    #[test]
    fn a_function_in_python_ends_where_its_indentation_does() {
        let text = "class X:\n    async def a(\n        self,\n    ) -> int:\n        def b():\n            pass\n\n# c\n        \
                    return 1\n\n    d = 2\ndef e(): pass\n";
        let functions = python(text).into_iter().map(|found| (found.name, found.first, found.lines));
        let expected = [("a", 2, 8), ("b", 5, 2), ("e", 12, 1)];
        assert!(functions.eq(expected.map(|(name, first, lines)| (name.to_owned(), first, lines))));
        let long = |lines: usize| format!("def long():\n{}", "    work()\n".repeat(lines - 1));
        assert_eq!(found("x.py", &long(80)), [""; 0]);
        assert_eq!(found("x.py", &long(81)), ["x.py:1: long has 81 lines"]);
    }

    #[test]
    fn a_file_of_more_than_500_lines_is_found() {
        for name in ["x.rs", "x.py"] {
            assert_eq!(found(name, &"\n".repeat(500)), [""; 0]);
            assert_eq!(found(name, &"\n".repeat(501)), [format!("{name} has 501 lines")]);
        }
        assert_eq!(found("Cargo.lock", &"\n".repeat(501)), [""; 0]);
    }

    #[test]
    fn the_ten_longest_are_shown_longest_first() {
        let text: String =
            (1..=12).map(|lines| format!("def f{lines}():\n{}", "    x\n".repeat(lines))).collect();
        let shown = sizes("x.py", &text).to_string();
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[..2], ["the longest files:", "  x.py has 90 lines"]);
        assert_eq!(lines[3], "  x.py:78: f12 has 13 lines");
        assert_eq!(lines.len(), 3 + SHOWN);
    }
}
