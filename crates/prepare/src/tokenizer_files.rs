//! The tokenizer of a directory without tokenizer.json: its class and its files, and the tokenizers made of SentencePiece's
//! model.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Value, json};

use crate::PrepareError;
use crate::model::{Document, SourceFile};
use crate::vocabulary::{
    Added, Beside, Class, Ids, LONGEST, MOST_MERGES, Parts, Result, SPACE, asked_ends, bounded, bpe,
    byte_level_bpe, document, pieces_to_text, replace, sequence, spaces, split, template, tiktoken, whole,
    word_piece,
};

/// The classes by their names, without `Fast` at the end.
const CLASSES: [(&str, Class); 12] = [
    ("BertTokenizer", Class::Bert),
    ("DistilBertTokenizer", Class::Bert),
    ("ElectraTokenizer", Class::Bert),
    ("MPNetTokenizer", Class::Mpnet),
    ("GPT2Tokenizer", Class::Gpt2),
    ("RobertaTokenizer", Class::Roberta),
    ("Qwen2Tokenizer", Class::Qwen2),
    ("LlamaTokenizer", Class::Llama),
    ("GemmaTokenizer", Class::Gemma),
    ("XLMRobertaTokenizer", Class::XlmRoberta),
    ("PreTrainedTokenizer", Class::Plain),
    ("TokenizersBackend", Class::Plain),
];

/// The classes of models whose files name none (models/auto/tokenization_auto.py).
const MODELS: [(&str, Class); 17] = [
    ("bert", Class::Bert),
    ("distilbert", Class::Bert),
    ("nomic_bert", Class::Bert),
    ("mpnet", Class::Mpnet),
    ("gpt2", Class::Gpt2),
    ("roberta", Class::Roberta),
    ("xlm-roberta", Class::XlmRoberta),
    ("qwen2", Class::Qwen2),
    ("qwen3", Class::Qwen2),
    ("llama", Class::Llama),
    ("gemma2", Class::Gemma),
    ("gemma3", Class::Gemma),
    ("gemma3_text", Class::Gemma),
    ("mistral", Class::Plain),
    ("phi3", Class::Plain),
    ("granite", Class::Plain),
    ("olmo2", Class::Plain),
];

impl Class {
    /// The names of its files: the vocabulary, and what belongs to it.
    fn files(self) -> &'static [&'static str] {
        match self {
            Class::Bert | Class::Mpnet => &["vocab.txt"],
            Class::Gpt2 | Class::Roberta | Class::Qwen2 => &["vocab.json", "merges.txt"],
            Class::XlmRoberta => &["sentencepiece.bpe.model"],
            Class::Llama | Class::Gemma | Class::Plain => &["tokenizer.model"],
        }
    }
}

pub(crate) const VOCABULARIES: [&str; 4] =
    ["vocab.txt", "vocab.json", "tokenizer.model", "sentencepiece.bpe.model"];

/// What belongs to them.
pub(crate) const BESIDE: [&str; 3] = ["merges.txt", "special_tokens_map.json", "added_tokens.json"];

const REMEDY: &str = "make a tokenizer.json with transformers: \
                      AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY)";

/// The tokenizer of a directory without tokenizer.json, or why there is none. Files that were read are added to
/// `files`. `said`: tokenizer_config.json, and `config` is config.json.
pub(crate) fn of_directory(
    directory: &Path,
    (said, config): (&Value, &Value),
    files: &mut Vec<SourceFile>,
) -> std::result::Result<Result<Document>, PrepareError> {
    let there: Vec<&str> = VOCABULARIES.into_iter().filter(|name| directory.join(name).is_file()).collect();
    if there.is_empty() {
        return Ok(Err(format!("the source has no tokenizer.json and no {}", VOCABULARIES.join(", "))));
    }
    let class = match class(said, config) {
        Ok(class) => class,
        Err(why) => return Ok(Err(format!("{why}; {REMEDY}"))),
    };
    let mut read = Vec::new();
    for name in class.files() {
        match SourceFile::optional(directory, name)? {
            Some(file) => read.push(file),
            None => {
                let there = there.join(", ");
                return Ok(Err(format!("its tokenizer needs {name}, and there is only {there}; {REMEDY}")));
            }
        }
    }
    let mut json = |name: &str| -> std::result::Result<Value, PrepareError> {
        let Some(file) = SourceFile::optional(directory, name)? else { return Ok(Value::Null) };
        let value = serde_json::from_slice(file.bytes());
        let value =
            value.map_err(|why| PrepareError::damaged(file.path(), format!("it does not parse: {why}")));
        files.push(file);
        value
    };
    let (special, added) = (json("special_tokens_map.json")?, json("added_tokens.json")?);
    let beside = Beside { config: said, special: &special, added: &added };
    let bytes: Vec<&[u8]> = read.iter().map(SourceFile::bytes).collect();
    let made = match class {
        Class::Bert | Class::Mpnet => word_piece(bytes[0], class, &beside),
        Class::Gpt2 | Class::Roberta | Class::Qwen2 => byte_level_bpe(bytes[0], bytes[1], class, &beside),
        // A model of SentencePiece is no text.
        Class::Llama | Class::Plain if bytes[0].is_ascii() => tiktoken(bytes[0], &beside),
        _ => sentencepiece(bytes[0], class, &beside),
    };
    files.extend(read);
    let names = class.files().join(" and ");
    Ok(made
        .and_then(|value| document(&value, format!("made of the source's {names}")))
        .map_err(|why| format!("{names}: {why}")))
}

fn class(said: &Value, config: &Value) -> Result<Class> {
    let named = [said, config].into_iter().find_map(|file| file.get("tokenizer_class")?.as_str());
    let model = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let (table, name, what) = match named {
        Some(name) => (&CLASSES[..], name.strip_suffix("Fast").unwrap_or(name), "tokenizer of class"),
        None => (&MODELS[..], model, "tokenizer without a class, of a model of type"),
    };
    let found = table.iter().find(|(known, _)| *known == name);
    found.map(|(_, class)| *class).ok_or_else(|| format!("the files of a {what} {name:?} are not read"))
}

// SentencePiece's model, a protocol buffer (sentencepiece_model.proto).

fn sentencepiece(bytes: &[u8], class: Class, beside: &Beside<'_>) -> Result<Value> {
    let model = Model::read(bytes)?;
    // A class takes the pieces as its own kind, whatever the file was trained as.
    match class {
        Class::XlmRoberta => xlm_roberta(&model, beside),
        Class::Plain if model.is_unigram => unigram(&model, beside),
        Class::Plain => plain_bpe(&model, beside),
        _ => class_bpe(&model, class, beside),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Normal,
    Control,
    UserDefined,
    Other,
}

struct Piece<'a> {
    text: &'a str,
    score: f32,
    kind: Kind,
}

struct Model<'a> {
    pieces: Vec<Piece<'a>>,
    is_unigram: bool,
    byte_fallback: bool,
    /// The id of the unknown piece, and its text.
    unk: usize,
    unk_piece: &'a str,
    charsmap: &'a [u8],
    dummy_prefix: bool,
    remove_extra_whitespaces: bool,
    escape_whitespaces: bool,
}

impl<'a> Model<'a> {
    fn read(bytes: &'a [u8]) -> Result<Model<'a>> {
        let mut model = Model {
            pieces: Vec::new(),
            is_unigram: true,
            byte_fallback: false,
            unk: 0,
            unk_piece: "<unk>",
            charsmap: &[],
            dummy_prefix: true,
            remove_extra_whitespaces: true,
            escape_whitespaces: true,
        };
        for field in Fields(bytes) {
            match field? {
                (1, Wire::Bytes(piece)) => model.pieces.push(Piece::read(piece)?),
                (2, Wire::Bytes(trainer)) => model.read_trainer(trainer)?,
                (3, Wire::Bytes(normalizer)) => model.read_normalizer(normalizer)?,
                _ => {}
            }
            bounded(model.pieces.len())?;
        }
        match model.pieces.is_empty() {
            true => Err("it is no model of SentencePiece: it has no pieces".into()),
            false => Ok(model),
        }
    }

    fn read_trainer(&mut self, bytes: &'a [u8]) -> Result<()> {
        for field in Fields(bytes) {
            match field? {
                (3, Wire::Number(kind @ (1 | 2))) => self.is_unigram = kind == 1,
                (3, Wire::Number(_)) => {
                    return Err("it is of words or of characters; supported are unigram and BPE".into());
                }
                (24, Wire::Number(1)) => {
                    return Err("it has its spaces at the ends of words, which is not supported".into());
                }
                (35, Wire::Number(on)) => self.byte_fallback = on != 0,
                (40, Wire::Number(id)) => self.unk = usize::try_from(id).unwrap_or(usize::MAX),
                (45, Wire::Bytes(piece)) => self.unk_piece = text(piece)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn read_normalizer(&mut self, bytes: &'a [u8]) -> Result<()> {
        for field in Fields(bytes) {
            match field? {
                (2, Wire::Bytes(tables)) => self.charsmap = tables,
                (3, Wire::Number(on)) => self.dummy_prefix = on != 0,
                (4, Wire::Number(on)) => self.remove_extra_whitespaces = on != 0,
                (5, Wire::Number(on)) => self.escape_whitespaces = on != 0,
                _ => {}
            }
        }
        Ok(())
    }

    fn ids(&self) -> Result<Ids> {
        let pieces = self.pieces.iter().enumerate();
        Ids::new(pieces.map(|(id, piece)| (piece.text.to_owned(), id)).collect())
    }

    fn user_defined(&self) -> Vec<&'a str> {
        let of_users = |piece: &&Piece<'a>| piece.kind == Kind::UserDefined && !piece.text.is_empty();
        self.pieces.iter().filter(of_users).map(|piece| piece.text).collect()
    }

    /// The named special tokens with the file's own control pieces, and with its user-defined ones where those are not
    /// split off as pieces.
    fn added(
        &self,
        beside: &Beside<'_>,
        names: &[(&str, Option<&str>)],
        with_user_defined: bool,
    ) -> Result<Vec<Added>> {
        let mut added = beside.added(names)?;
        let mut held: BTreeSet<String> = added.iter().map(|token| token.content.clone()).collect();
        for piece in &self.pieces {
            let is_control = piece.kind == Kind::Control;
            let is_added = is_control || (with_user_defined && piece.kind == Kind::UserDefined);
            if is_added && held.insert(piece.text.to_owned()) {
                added.push(Added::new(piece.text, None, is_control));
            }
        }
        Ok(added)
    }

    /// The tables of the normaliser.
    fn tables(&self) -> Option<Value> {
        let tables = (!self.charsmap.is_empty()).then(|| BASE64_STANDARD.encode(self.charsmap));
        tables.map(|tables| json!({ "type": "Precompiled", "precompiled_charsmap": tables }))
    }

    /// Every way to put a piece together from two others: the pieces in the order of their ids, or, as SentencePiece
    /// itself, the best score first.
    fn merges(&self, by_score: bool) -> Result<Vec<(&'a str, &'a str)>> {
        let pieces = self.pieces.iter().enumerate();
        let pieces = pieces.filter(|(_, piece)| !by_score || piece.kind == Kind::Normal);
        let ids: HashMap<&str, usize> = pieces.map(|(id, piece)| (piece.text, id)).collect();
        let mut found = Vec::new();
        for (&piece, &id) in &ids {
            if piece.len() > LONGEST {
                let length = piece.len();
                return Err(format!("it has a piece of {length} bytes; at most {LONGEST} are supported"));
            }
            for (at, _) in piece.char_indices().skip(1) {
                let (left, right) = piece.split_at(at);
                if ids.contains_key(left) && ids.contains_key(right) {
                    if found.len() == MOST_MERGES {
                        return Err("it has too many ways to put its pieces together".into());
                    }
                    found.push((id, left, right));
                }
            }
        }
        let score = |id: usize| if by_score { self.pieces[id].score } else { 0.0 };
        found.sort_by(|a, b| {
            let parts = match by_score {
                true => (a.1, a.2).cmp(&(b.1, b.2)),
                false => a.1.len().cmp(&b.1.len()),
            };
            score(b.0).total_cmp(&score(a.0)).then(a.0.cmp(&b.0)).then(parts)
        });
        Ok(found.into_iter().map(|(_, left, right)| (left, right)).collect())
    }
}

impl<'a> Piece<'a> {
    fn read(bytes: &'a [u8]) -> Result<Piece<'a>> {
        let mut piece = Piece { text: "", score: 0.0, kind: Kind::Normal };
        for field in Fields(bytes) {
            match field? {
                (1, Wire::Bytes(bytes)) => piece.text = text(bytes)?,
                (2, Wire::Four(bits)) => piece.score = f32::from_bits(bits),
                (3, Wire::Number(1)) => piece.kind = Kind::Normal,
                (3, Wire::Number(3)) => piece.kind = Kind::Control,
                (3, Wire::Number(4)) => piece.kind = Kind::UserDefined,
                (3, Wire::Number(_)) => piece.kind = Kind::Other,
                _ => {}
            }
        }
        match piece.score.is_finite() {
            true => Ok(piece),
            false => Err(format!("it gives the piece {:?} no finite score", piece.text)),
        }
    }
}

fn text(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|_| "it has a piece that is not UTF-8".to_owned())
}

enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Four(u32),
    Eight,
}

/// The fields of a message, with their numbers.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for place in 0..10 {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f).checked_shl(7 * place)?;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, length: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    fn field(&mut self) -> Option<(u64, Wire<'a>)> {
        let key = self.number()?;
        let wire = match key & 7 {
            0 => Wire::Number(self.number()?),
            1 => self.take(8).map(|_| Wire::Eight)?,
            2 => {
                let length = self.number()?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Four(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some((key >> 3, wire))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Wire<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            // Nothing can be read after it.
            self.0 = &[];
        }
        Some(field.ok_or_else(|| "it is no model of SentencePiece, or is cut off".into()))
    }
}

// BPE: pieces are put together from two others.

/// Llama's and Gemma's, which have a normaliser of their own.
fn class_bpe(model: &Model<'_>, class: Class, beside: &Beside<'_>) -> Result<Value> {
    let is_gemma = class == Class::Gemma;
    let [bos, eos, unk] = if is_gemma { ["<bos>", "<eos>", "<unk>"] } else { ["<s>", "</s>", "<unk>"] };
    let mut names = vec![("unk_token", Some(unk)), ("bos_token", Some(bos)), ("eos_token", Some(eos))];
    match is_gemma {
        true => names.extend([("pad_token", Some("<pad>")), ("mask_token", Some("<mask>"))]),
        false => names.push(("pad_token", None)),
    }
    let mut ids = model.ids()?;
    let added = ids.add(model.added(beside, &names, true)?);
    let prefix = beside.flag("add_prefix_space").unwrap_or(true);
    let (normalizer, pre_tokenizer, decoder) = match is_gemma {
        true => (
            spaces(),
            json!({
                "type": "Split", "pattern": { "String": " " }, "behavior": "MergedWithPrevious", "invert": false
            }),
            pieces_to_text(false, true),
        ),
        false => {
            let scheme = match (prefix, beside.flag("legacy").unwrap_or(false)) {
                (false, _) => "never",
                (true, true) => "always",
                (true, false) => "first",
            };
            (Value::Null, metaspace(scheme, false), pieces_to_text(prefix, true))
        }
    };
    let unk = is_gemma.then(|| beside.token("unk_token", Some("<unk>"))).flatten();
    let unk = unk.filter(|unk| ids.vocabulary.contains_key(unk));
    let fields = [("unk_token", json!(unk)), ("fuse_unk", json!(true)), ("byte_fallback", json!(true))];
    Ok(whole(Parts {
        added,
        normalizer,
        pre_tokenizer,
        post_processor: asked_ends(beside, [Some(bos), Some(eos)], &ids)?,
        decoder,
        model: bpe(json!(ids.vocabulary), json!(model.merges(false)?), &fields),
    }))
}

const NAMES: [(&str, Option<&str>); 4] = [
    ("unk_token", Some("<unk>")),
    ("bos_token", Some("<s>")),
    ("eos_token", Some("</s>")),
    ("pad_token", None),
];

fn plain_bpe(model: &Model<'_>, beside: &Beside<'_>) -> Result<Value> {
    let mut ids = model.ids()?;
    let added = ids.add(model.added(beside, &NAMES, false)?);
    let unk = Some(model.unk_piece).filter(|unk| ids.vocabulary.contains_key(*unk));
    let fields = [
        ("unk_token", json!(unk)),
        ("fuse_unk", json!(true)),
        ("byte_fallback", json!(model.byte_fallback)),
        ("ignore_merges", json!(!model.user_defined().is_empty())),
    ];
    let merges = json!(model.merges(true)?);
    plain(model, beside, (&ids, added), bpe(json!(ids.vocabulary), merges, &fields))
}

// Unigram: the division with the best sum of scores.

fn unigram(model: &Model<'_>, beside: &Beside<'_>) -> Result<Value> {
    let pieces = model.pieces.iter().map(|piece| (piece.text, f64::from(piece.score))).collect();
    let mut ids = model.ids()?;
    let names = [("eos_token", Some("</s>")), ("unk_token", Some("<unk>")), ("pad_token", Some("<pad>"))];
    let added = ids.add(model.added(beside, &names, false)?);
    plain(model, beside, (&ids, added), unigram_model(pieces, model.unk, model.byte_fallback)?)
}

/// The vocabulary of fairseq: `<s> <pad> </s> <unk>` come first, and the file's own three first pieces go.
fn xlm_roberta(model: &Model<'_>, beside: &Beside<'_>) -> Result<Value> {
    let names = [("bos_token", "<s>"), ("pad_token", "<pad>"), ("eos_token", "</s>"), ("unk_token", "<unk>")];
    let first = names.map(|(name, usual)| beside.token_or(name, usual));
    let mask = beside.token_or("mask_token", "<mask>");
    let mut pieces: Vec<(&str, f64)> = first.iter().map(|token| (token.as_str(), 0.0)).collect();
    pieces.extend(model.pieces.iter().skip(3).map(|piece| (piece.text, f64::from(piece.score))));
    pieces.push((&mask, 0.0));
    let mut ids = Ids::new(
        pieces.iter().enumerate().rev().map(|(id, (piece, _))| ((*piece).to_owned(), id)).collect(),
    )?;
    let mut named: Vec<_> = names.map(|(name, usual)| (name, Some(usual))).to_vec();
    named.push(("mask_token", Some("<mask>")));
    let added = ids.add(model.added(beside, &named, true)?);
    let scheme = if beside.flag("add_prefix_space").unwrap_or(true) { "always" } else { "never" };
    let words = vec![json!({ "type": "WhitespaceSplit" }), metaspace(scheme, true)];
    let [bos, _, eos, _] = &first;
    let (before, after) = ((bos.as_str(), Some(ids.get(bos)?), 0), (eos.as_str(), Some(ids.get(eos)?), 0));
    let pair = [before, ("A", None, 0), after, after, ("B", None, 0), after];
    Ok(whole(Parts {
        added,
        normalizer: model.tables().unwrap_or(Value::Null),
        pre_tokenizer: sequence("pretokenizers", words),
        post_processor: template(&pair[..3], &pair),
        decoder: metaspace(scheme, true),
        model: unigram_model(pieces, 3, false)?,
    }))
}

fn unigram_model(pieces: Vec<(&str, f64)>, unk: usize, byte_fallback: bool) -> Result<Value> {
    let count = pieces.len();
    if unk >= count {
        return Err(format!("its unknown piece is {unk}, but it has {count} pieces"));
    }
    Ok(json!({ "type": "Unigram", "unk_id": unk, "vocab": pieces, "byte_fallback": byte_fallback }))
}

// Common parts.

fn metaspace(scheme: &str, split: bool) -> Value {
    json!({ "type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": split })
}

/// A tokenizer without a class, as the file itself says.
fn plain(
    model: &Model<'_>,
    beside: &Beside<'_>,
    (ids, added): (&Ids, Vec<Value>),
    of_model: Value,
) -> Result<Value> {
    let legacy = beside.flag("legacy").unwrap_or(true);
    let mut normalizers: Vec<Value> = model.tables().into_iter().collect();
    if model.remove_extra_whitespaces {
        normalizers.push(replace(json!({ "Regex": r"\A +| +\z" }), ""));
        normalizers.push(replace(json!({ "Regex": " {2,}" }), " "));
    }
    if model.escape_whitespaces {
        normalizers.push(spaces());
    }
    if model.dummy_prefix && legacy {
        // Metaspace puts no space before one.
        normalizers.push(replace(json!({ "Regex": r"\A▁" }), "▁▁"));
    }
    let mut splits = Vec::new();
    if model.dummy_prefix {
        splits.push(metaspace(if legacy { "always" } else { "first" }, false));
    }
    let mut longest = model.user_defined();
    if !longest.is_empty() {
        longest.sort_by_key(|piece| std::cmp::Reverse(piece.chars().count()));
        let pattern = longest.iter().map(|piece| escaped(piece)).collect::<Vec<_>>().join("|");
        splits.push(split(&pattern));
    }
    Ok(whole(Parts {
        added,
        normalizer: sequence("normalizers", normalizers),
        pre_tokenizer: sequence("pretokenizers", splits),
        post_processor: asked_ends(beside, [Some("<s>"), Some("</s>")], ids)?,
        decoder: pieces_to_text(model.dummy_prefix, model.byte_fallback),
        model: of_model,
    }))
}

/// A text as a pattern for itself.
fn escaped(text: &str) -> String {
    let is_literal = |letter: char| !letter.is_ascii_punctuation() || "_<>".contains(letter);
    text.chars()
        .flat_map(|letter| (!is_literal(letter)).then_some('\\').into_iter().chain([letter]))
        .collect()
}
