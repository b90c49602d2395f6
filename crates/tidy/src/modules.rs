//! The modules of a crate, found as the compiler finds them. Modules for tests alone are left out.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use syn::ext::IdentExt;
use syn::{Attribute, Item};

/// One module with its items, except those of its own modules.
pub(crate) struct Module {
    /// From the crate's root, which is empty.
    pub(crate) path: Vec<String>,
    pub(crate) file: PathBuf,
    pub(crate) items: Vec<Item>,
}

/// Every module of the crate with this root file.
pub(crate) fn modules(root: &Path) -> Result<Vec<Module>> {
    let mut found = Vec::new();
    read(root, Vec::new(), root.parent().unwrap_or(root), &mut found)?;
    Ok(found)
}

/// `children` is the directory in which the module's own modules are.
fn read(file: &Path, path: Vec<String>, children: &Path, found: &mut Vec<Module>) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let parsed = syn::parse_file(&text)
        .map_err(|error| anyhow!("{}:{}: {error}", file.display(), error.span().start().line))?;
    add(Module { path, file: file.to_owned(), items: parsed.items }, children, found)
}

fn add(mut module: Module, children: &Path, found: &mut Vec<Module>) -> Result<()> {
    let mut items = Vec::new();
    for item in std::mem::take(&mut module.items) {
        if is_for_tests(attributes(&item)) {
            continue;
        }
        let Item::Mod(inner) = item else {
            items.push(item);
            continue;
        };
        let name = inner.ident.unraw().to_string();
        let path = [module.path.as_slice(), std::slice::from_ref(&name)].concat();
        let children = children.join(&name);
        match inner.content {
            Some((_, items)) => add(Module { path, file: module.file.clone(), items }, &children, found)?,
            None => {
                let files = [children.with_extension("rs"), children.join("mod.rs")];
                let file = files.iter().find(|file| file.is_file());
                let file = file.ok_or_else(|| anyhow!("{}: no file of mod {name}", module.file.display()))?;
                read(file, path, &children, found)?;
            }
        }
    }
    found.push(Module { items, ..module });
    Ok(())
}

/// `#[test]`, `#[cfg(test)]` and conditions that require more as well.
pub(crate) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let condition = attribute.meta.require_list().map(|list| list.tokens.to_string()).unwrap_or_default();
        let words = || condition.split(|c: char| !c.is_alphanumeric());
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && words().any(|word| word == "test")
                && !words().any(|word| word == "not")
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
