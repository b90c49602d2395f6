//! The names that a module uses and defines, as written in its text.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::visit::{self, Visit};
use syn::{Item, UseTree};

use crate::modules::is_for_tests;

#[derive(Default)]
pub(crate) struct Names {
    /// Items of the module itself.
    pub(crate) defined: BTreeSet<String>,
    /// Names that `use` imports, by their names here.
    pub(crate) imports: BTreeMap<String, Vec<String>>,
    /// Paths before `::*`.
    pub(crate) globs: Vec<Vec<String>>,
    /// Every path that is written, those of `use` included.
    pub(crate) paths: BTreeSet<Vec<String>>,
}

impl Names {
    pub(crate) fn read(items: &[Item]) -> Self {
        let mut names = Self::default();
        for item in items {
            names.defined.extend(defined_by(item));
            names.visit_item(item);
        }
        names
    }

    fn import(&mut self, prefix: &[String], tree: &UseTree) {
        let with = |name: &syn::Ident| {
            let name = name.unraw().to_string();
            // `{self, …}` names the prefix.
            if name == "self" && !prefix.is_empty() { prefix.to_vec() } else { [prefix, &[name]].concat() }
        };
        match tree {
            UseTree::Path(path) => self.import(&with(&path.ident), &path.tree),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(prefix, tree)),
            UseTree::Glob(_) => {
                self.globs.push(prefix.to_vec());
                self.paths.insert(prefix.to_vec());
            }
            UseTree::Name(name) => self.bring_in(None, with(&name.ident)),
            UseTree::Rename(name) => self.bring_in(Some(name.rename.unraw().to_string()), with(&name.ident)),
        }
    }

    fn bring_in(&mut self, name: Option<String>, path: Vec<String>) {
        if let Some(name) = name.or_else(|| path.last().cloned()) {
            self.imports.insert(name, path.clone());
        }
        self.paths.insert(path);
    }

    /// Paths in the tokens of a macro or an attribute, also in text such as `with = "crate::hex"`.
    fn scan(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => {
                    colons += 1;
                    continue;
                }
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.paths.insert(std::mem::take(&mut path));
                    }
                    path.push(name.unraw().to_string());
                }
                other => {
                    self.paths.insert(std::mem::take(&mut path));
                    match other {
                        TokenTree::Group(group) => self.scan(group.stream()),
                        TokenTree::Literal(literal) => {
                            let text = literal.to_string();
                            if ["\"crate::", "\"super::", "\"self::"]
                                .iter()
                                .any(|start| text.starts_with(start))
                            {
                                let path = text.trim_matches('"').split("::").map(str::to_owned);
                                self.paths.insert(path.collect());
                            }
                        }
                        _ => {}
                    }
                }
            }
            colons = 0;
        }
        self.paths.insert(path);
    }
}

impl Visit<'_> for Names {
    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        if item.leading_colon.is_none() {
            self.import(&[], &item.tree);
        }
    }

    fn visit_path(&mut self, path: &syn::Path) {
        if path.leading_colon.is_none() {
            self.paths
                .insert(path.segments.iter().map(|segment| segment.ident.unraw().to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &syn::Macro) {
        self.visit_path(&call.path);
        self.scan(call.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta {
            self.scan(list.tokens.clone());
        }
    }

    fn visit_impl_item_fn(&mut self, function: &syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    /// `pub(in path)` restricts visibility, and uses nothing.
    fn visit_visibility(&mut self, _: &syn::Visibility) {}
}

fn defined_by(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.unraw().to_string())
}
