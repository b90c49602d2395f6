//! Rules on the size of functions and files. Tests are left out.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use syn::visit::{self, Visit};

use crate::modules::{Module, is_for_tests};
use crate::{Finding, relative};

pub(crate) const LONG_FUNCTION: &str = "a function has at most 60 lines";
pub(crate) const LONG_FILE: &str = "a file has at most 350 lines";
const LONGEST_FUNCTION: usize = 60;
const LONGEST_FILE: usize = 350;

pub(crate) fn check(root: &Path, crate_name: &str, modules: &[Module]) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for module in modules {
        let file = relative(root, &module.file);
        let mut functions = Functions::default();
        module.items.iter().for_each(|item| functions.visit_item(item));
        findings.extend(functions.0.into_iter().map(|(name, line, lines)| Finding {
            rule: LONG_FUNCTION,
            place: crate_name.to_owned(),
            found: format!("{file}:{line}: {name} has {lines}"),
            remedy: "move steps with a purpose of their own into functions",
        }));
    }
    for file in modules.iter().map(|module| &module.file).collect::<BTreeSet<_>>() {
        let lines = std::fs::read_to_string(file)?.lines().count();
        if lines > LONGEST_FILE {
            findings.push(Finding {
                rule: LONG_FILE,
                place: crate_name.to_owned(),
                found: format!("{} has {lines}", relative(root, file)),
                remedy: "ask what it hides, and move that out",
            });
        }
    }
    Ok(findings)
}

/// Long functions: name, first line, lines.
#[derive(Default)]
struct Functions(Vec<(String, usize, usize)>);

impl Functions {
    fn measure(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let first = signature.fn_token.span.start().line;
        let lines = block.brace_token.span.close().end().line - first + 1;
        if lines > LONGEST_FUNCTION {
            self.0.push((signature.ident.to_string(), first, lines));
        }
    }
}

impl Visit<'_> for Functions {
    fn visit_item_fn(&mut self, function: &syn::ItemFn) {
        self.measure(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            self.measure(&function.sig, &function.block);
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_trait_item_fn(&mut self, function: &syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.measure(&function.sig, block);
        }
        visit::visit_trait_item_fn(self, function);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::modules;

    /// What is found in a crate of one file.
    fn found(text: &str) -> Vec<String> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("lib.rs");
        std::fs::write(&file, text).unwrap();
        let findings = check(directory.path(), "x", &modules(&file).unwrap()).unwrap();
        findings.into_iter().map(|finding| finding.found).collect()
    }

    fn function(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    work();\n".repeat(lines - 2))
    }

    #[test]
    fn a_long_function_is_found_wherever_it_stands() {
        assert_eq!(found(&function(60)), [""; 0]);
        assert_eq!(found(&function(61)), ["lib.rs:1: long has 61"]);
        assert_eq!(found(&format!("impl X {{\n{}}}\n", function(61))), ["lib.rs:2: long has 61"]);
        assert_eq!(found(&format!("trait X {{\n{}}}\n", function(61))), ["lib.rs:2: long has 61"]);
        assert_eq!(found(&format!("mod x {{\n{}}}\n", function(61))), ["lib.rs:2: long has 61"]);
    }

    #[test]
    fn a_long_function_of_tests_is_nobody_s_concern() {
        assert_eq!(found(&format!("#[cfg(test)]\nmod tests {{\n{}}}\n", function(61))), [""; 0]);
        assert_eq!(found(&format!("#[test]\n{}", function(61))), [""; 0]);
    }

    #[test]
    fn a_file_of_more_than_350_lines_is_found() {
        assert_eq!(found(&"// x\n".repeat(350)), [""; 0]);
        assert_eq!(found(&"// x\n".repeat(351)), ["lib.rs has 351"]);
    }
}
