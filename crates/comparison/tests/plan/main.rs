mod mixed;
mod optimised;
mod requests;
mod tokenizers;
