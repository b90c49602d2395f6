mod optimised;
mod requests;
