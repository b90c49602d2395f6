// What the protocol asks of every worker: reading a job, sending lines, readings, the last turn.
package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

type object = map[string]any
type unsupported string // why a job is declined

// request has a row of token ids for each sequence of the batch.
type request struct{ Context, Prompts, Trace [][]int }

// job has the fields that this worker reads; `encoding/json` passes over all others.
type job struct {
	Bundle   string
	Settings struct{ Threads int }
	Model    struct {
		Tensors struct {
			Embedding string
			Head      string `json:"lm_head"`
		}
	}
	Task struct {
		Kind   string
		LeadIn int `json:"lead_in"`
		Warmup struct {
			Most int           `json:"max_iterations"`
			Time time.Duration `json:"max_ns"`
		}
		Work struct {
			Cases     []request
			NewTokens int `json:"new_tokens"`
		}
	}
}

type turn struct {
	Turn   string
	Case   int
	Input  struct{ Continue *struct{ Prompts, Trace [][]int } }
	Tokens []int
	Hash   bool
	Parity *parity
}

// given is a case with the input of its turn: other prompts, and another trace or none.
func (asked turn) given(of request) request {
	if input := asked.Input.Continue; input != nil {
		of.Trace = input.Trace
		if len(input.Prompts) > 0 {
			of.Prompts = input.Prompts
		}
	}
	return of
}

type parity struct {
	File             string
	Steps, Sequences int
	PromptLastOnly   bool `json:"prompt_last_only"`
}

// The protocol's lines go to stdout, unbuffered, and whatever else Go code prints to stderr. If you link a C library
// that prints to stdout, take the lines' file from `syscall.Dup(1)` and then call `syscall.Dup3(2, 1, 0)`.
var lines = os.Stdout

func init() { os.Stdout = os.Stderr }

func send(event string, fields object) {
	line := object{"event": event}
	for name, value := range fields {
		line[name] = value
	}
	check(json.NewEncoder(lines).Encode(line))
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// failed reports a panic, if there is one, and ends the worker.
func failed() {
	if reason := recover(); reason != nil {
		kind := "failed"
		if _, declined := reason.(unsupported); declined {
			kind = "unsupported"
		}
		send("failed", object{"kind": kind, "reason": fmt.Sprint(reason)})
		os.Exit(1)
	}
}

// accept reads the job and declines what this worker cannot do.
func accept(in *json.Decoder) (job job) {
	var line json.RawMessage
	var asked object
	check(in.Decode(&line))
	check(json.Unmarshal(line, &asked))
	decline(asked, able)
	check(json.Unmarshal(line, &job))
	if job.Task.Kind != "load" && job.Task.Kind != "measure" {
		panic(unsupported("a task of kind " + job.Task.Kind + ": this worker does not do it"))
	}
	return job
}

func decline(asked, able object) {
	for name, can := range able {
		wanted := asked[name]
		if part, nested := can.(object); nested && wanted != nil {
			decline(wanted.(object), part)
		} else if wanted != nil && wanted != can {
			panic(unsupported(fmt.Sprintf("the job asks for `%s` %v: this worker does not do it", name, wanted)))
		}
	}
}

func memory() object {
	status, _ := os.ReadFile("/proc/self/status")
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	var kibibytes int64
	if _, err := fmt.Sscan(peak, &kibibytes); err != nil {
		return object{} // not on Linux: a reading that is not available is left out
	}
	return object{"peak_bytes": 1024 * kibibytes, "method": "VmHWM of the process so far"}
}

// finish answers the last turn.
func finish(last turn, job job, path string, wall int64) {
	usage := object{"memory": memory(), "wall_ns": wall, "peak_bytes": memory()["peak_bytes"]}
	if last.Hash {
		file, err := os.Open(path)
		check(err)
		sum := sha256.New()
		_, err = io.Copy(sum, file)
		check(err)
		usage["weights_sha256"] = fmt.Sprintf("%x", sum.Sum(nil))
	}
	send("usage", usage)
	if last.Parity != nil {
		save(last.Parity, job.Task.Work.Cases)
		send("parity", object{"file": last.Parity.File})
	}
}

func size(path string) int64 {
	status, err := os.Stat(path)
	check(err)
	return status.Size()
}
