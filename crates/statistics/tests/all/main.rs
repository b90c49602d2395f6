mod decisions;
mod gate;
