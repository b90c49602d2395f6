mod golden;
mod schemas;
