mod optimised;
mod requests;
mod tokenizers;
