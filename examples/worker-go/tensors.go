// Files of tensors (safetensors: the length of a header in JSON, the header, numbers), and the little arithmetic.
package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
)

// entry is a tensor in a safetensors header. Offsets count from the header's end.
type entry struct {
	Type    string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// load reads one f32 matrix of a safetensors file, as its rows.
func load(path, name string) [][]float32 {
	file, err := os.Open(path)
	check(err)
	defer file.Close()
	var length int64
	check(binary.Read(file, binary.LittleEndian, &length))
	var header map[string]entry
	check(json.NewDecoder(io.LimitReader(file, length)).Decode(&header))
	found, is := header[name]
	if !is || found.Type != "F32" || len(found.Shape) != 2 {
		panic(fmt.Sprintf("%s has no matrix %q in F32", path, name))
	}
	from, to := found.Offsets[0], found.Offsets[1]
	matrix := make([][]float32, found.Shape[0])
	data := io.NewSectionReader(file, 8+length+from, to-from)
	for i := range matrix {
		matrix[i] = make([]float32, found.Shape[1])
		check(binary.Read(data, binary.LittleEndian, matrix[i]))
	}
	return matrix
}

// save writes the logits along each case: `case.N` is [sequence][position][vocabulary].
func save(asked *parity, cases []request) {
	header, data := map[string]entry{}, []float32{}
	for n, of := range cases {
		if most := asked.Sequences; most > 0 {
			of = request{first(of.Context, most), first(of.Prompts, most), first(of.Trace, most)}
		}
		from, result := int64(4*len(data)), along(of, asked)
		for _, row := range result {
			data = append(data, row...)
		}
		shape := []int{len(result), len(result[0]) / len(head), len(head)}
		header[fmt.Sprintf("case.%d", n)] = entry{"F32", shape, [2]int64{from, int64(4 * len(data))}}
	}
	text, err := json.Marshal(header)
	check(err)
	for len(text)%8 != 0 {
		text = append(text, ' ') // numbers begin at a multiple of 8 bytes
	}
	file, err := os.Create(asked.File)
	check(err)
	for _, part := range []any{int64(len(text)), text, data} {
		check(binary.Write(file, binary.LittleEndian, part))
	}
	check(file.Close())
}

// along computes a case's logits: context and prompt in one piece, `Steps` tokens one at a time, then the rest. Of
// context and prompt it keeps the last position, or all.
func along(of request, asked *parity) [][]float32 {
	prompts, all := make([][]int, len(of.Prompts)), !asked.PromptLastOnly
	for i := range prompts {
		if len(of.Context) > 0 {
			prompts[i] = append(prompts[i], of.Context[i]...)
		}
		prompts[i] = append(prompts[i], of.Prompts[i]...)
		all = all && len(prompts[i]) == len(prompts[0])
	}
	keep := 1
	if all {
		keep = len(prompts[0])
	}
	count := len(of.Trace[0])
	cache := newCache(of, count)
	result := logits(cache, prompts, keep)
	for from, to := 0, 0; from < count; from = to {
		to = from + 1
		if from >= asked.Steps {
			to = count
		}
		for i, row := range logits(cache, columns(of.Trace, from, to), to-from) {
			result[i] = append(result[i], row...)
		}
	}
	return result
}

// newCache is an empty cache with room for all of a request: for its trace, or for so many tokens where it has none.
func newCache(of request, count int) [][]int {
	cache := make([][]int, len(of.Prompts))
	if len(of.Trace) > 0 {
		count = len(of.Trace[0])
	}
	for i := range cache {
		room := len(of.Prompts[i]) + count
		if len(of.Context) > 0 {
			room += len(of.Context[i])
		}
		cache[i] = make([]int, 0, room)
	}
	return cache
}

// columns are the tokens at some positions of each sequence.
func columns(tokens [][]int, from, to int) [][]int {
	result := make([][]int, len(tokens))
	for i := range tokens {
		result[i] = tokens[i][from:to]
	}
	return result
}

// those are the numbers at some places of each row; one that JSON cannot represent is null.
func those(rows [][]float32, places []int) [][]any {
	result := make([][]any, len(rows))
	for i, row := range rows {
		result[i] = make([]any, len(places))
		for j, place := range places {
			if row[place]-row[place] == 0 {
				result[i][j] = row[place]
			}
		}
	}
	return result
}

func first(tokens [][]int, most int) [][]int {
	return tokens[:least(most, len(tokens))]
}

// multiply is matrix times vector. The job's threads share the rows.
func multiply(matrix [][]float32, vector []float32) []float32 {
	result := make([]float32, len(matrix))
	threads := runtime.GOMAXPROCS(0)
	var running sync.WaitGroup
	for thread := 0; thread < threads; thread++ {
		running.Add(1)
		go func(thread int) {
			defer running.Done()
			for i := thread; i < len(matrix); i += threads {
				var sum float32
				for k, value := range matrix[i] {
					sum += value * vector[k]
				}
				result[i] = sum
			}
		}(thread)
	}
	running.Wait()
	return result
}

// largest is the place of the largest number, the first of equals.
func largest(numbers []float32) int {
	place := 0
	for i, number := range numbers {
		if number > numbers[place] {
			place = i
		}
	}
	return place
}

func least(a, b int) int {
	if a < b {
		return a
	}
	return b
}
