// A whole worker, in Go's standard library alone. Its model is the bundle's first and last matrix: put your framework
// into `logits`. docs/reference/protocol.md explains every field. An error is a panic, which `failed` reports.
package main

import (
	"encoding/json"
	"os"
	"runtime"
	"time"
)

var began = time.Now()

// The framework's name is also the one in your file in ~/.config/photofinish/engines.
var hello = object{"protocol": 13, "framework": "mygo", "binding": "mygo 0.1", "library": "mygo 0.1",
	"build": object{"profile": "release", "toolchain": runtime.Version()}}

// The values that this worker computes. It declines a job with others; a field that is left out has its default.
var able = object{"protocol": 13.0, "settings": object{"precision": "f32", "kv_precision": "f32", "device": "cpu",
	"shards": 1.0, "slowdown": 0.0, "anew": false},
	"task": object{"load": nil, // one caller
		"work": object{"kind": "generate", "kv_cache": "on", "decode": "forced", "prefill_chunk": nil}}}

// The weights of this model, each [vocabulary][width], and the logits of the last step, [sequence][vocabulary].
var embedding, head, last [][]float32

// logits appends tokens [sequence][position] to a request's cache (see newCache) and returns the logits of each
// sequence's last `keep` positions, [sequence][keep * vocabulary]. PUT YOUR FRAMEWORK HERE. Its keys and values belong
// in the cache; this model needs none and keeps the tokens there.
func logits(cache, tokens [][]int, keep int) [][]float32 {
	result := make([][]float32, len(tokens))
	for i := range tokens {
		cache[i] = append(cache[i], tokens[i]...)
		for _, token := range cache[i][len(cache[i])-keep:] {
			result[i] = append(result[i], multiply(head, embedding[token])...)
		}
	}
	return result
}

// respond computes one request, timed: the prompt, then one token of the trace after the other, or its own tokens where
// there is no trace. The context is in the cache when the clock starts, except in the cold start, which includes it.
func respond(number int, of request, count int, cold bool) ([]int64, object) {
	cache, tokens, marks := newCache(of, count), make([][]int, len(of.Prompts)), make([]int64, count)
	fed := of.Trace
	if len(fed) == 0 {
		fed = tokens
	}
	start := time.Now()
	if len(of.Context) > 0 {
		logits(cache, of.Context, 1)
	}
	if !cold {
		start = time.Now()
	}
	feed := of.Prompts
	for step := range marks {
		last = logits(cache, feed, 1)
		for i, row := range last {
			tokens[i] = append(tokens[i], largest(row))
		}
		marks[step] = time.Since(start).Nanoseconds()
		feed = columns(fed, step, step+1)
	}
	return marks, object{"case": number, "marks_ns": marks, "output": object{"tokens": tokens}}
}

func work(in *json.Decoder) {
	job := accept(in)
	send("hello", hello)
	runtime.GOMAXPROCS(job.Settings.Threads)
	send("started", object{"runtime_ns": time.Since(began).Nanoseconds(), "memory": memory()})
	start, file := time.Now(), job.Bundle+"/f32.safetensors"
	embedding = load(file, job.Model.Tensors.Embedding)
	if head = embedding; job.Model.Tensors.Head != job.Model.Tensors.Embedding {
		head = load(file, job.Model.Tensors.Head)
	}
	inEffect := object{ // what is so, not what was asked for
		"precision": "f32", "activations": "f32", "kv_cache_precision": "f32", "kv_cache": "preallocated",
		"device": "cpu", "threads": runtime.GOMAXPROCS(0), "jit": "none", "weight_storage": "one copy in memory",
		"kernels": []string{"loops in Go"}}
	send("loaded", object{"load_ns": time.Since(start).Nanoseconds(), "memory": memory(), "in_effect": inEffect,
		"weights_file": file, "weights_bytes": size(file)})
	if job.Task.Kind == "load" {
		return
	}
	cases, count, limit, wall := job.Task.Work.Cases, job.Task.Work.NewTokens, job.Task.Warmup, int64(0)
	marks, _ := respond(0, cases[0], count, true)
	send("cold_start", object{"marks_ns": marks, "memory": memory()})
	iterations := []object{}
	for start = time.Now(); len(iterations) == 0 || len(iterations) < limit.Most && time.Since(start) < limit.Time; {
		samples := make([]object, len(cases))
		for number, of := range cases {
			_, samples[number] = respond(number, of, count, false)
		}
		iterations = append(iterations, object{"index": len(iterations), "cases": samples})
	}
	send("warmup", object{"iterations": iterations, "settled": false, "memory": memory()})
	for { // it is warm, and answers one turn after the other
		var asked turn
		check(in.Decode(&asked))
		if asked.Turn == "finish" {
			finish(asked, job, file, wall)
			return
		}
		of := asked.given(cases[asked.Case])
		if asked.Turn == "logits" { // nothing is computed for it
			send("logits", object{"case": asked.Case, "values": those(last, asked.Tokens)})
			continue
		}
		if asked.Turn == "prepare" { // counts in no figure
			respond(asked.Case, of, least(job.Task.LeadIn, count), false)
			send("ready", object{"case": asked.Case})
			continue
		}
		marks, answer := respond(asked.Case, of, count, false)
		wall += marks[count-1]
		send("sample", answer)
	}
}

func main() {
	defer failed()
	if len(os.Args) == 2 && os.Args[1] == "--hello" {
		send("hello", hello)
		return
	}
	work(json.NewDecoder(os.Stdin))
	send("done", object{})
}
