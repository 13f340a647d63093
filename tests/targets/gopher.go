// gopher: at `go N` four goroutines call gopherHot N times each, with stacks that grow and a
// garbage collection between, and check the sums.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
)

//go:noinline
func gopherHot(number uint64) uint64 { return number*7 + 3 }

// gopherDeep has its stack copied while it is on it.
//
//go:noinline
func gopherDeep(depth uint64) uint64 {
	var room [64]uint64
	if depth == 0 {
		return 0
	}
	room[depth%64] = gopherDeep(depth - 1)
	return room[depth%64] + 1
}

func main() {
	var calls, wrongs atomic.Uint64
	fmt.Println("ready", os.Getpid())
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var word string
		rounds := uint64(1)
		fmt.Sscan(lines.Text(), &word, &rounds)
		var group sync.WaitGroup
		for worker := 0; worker < 4; worker++ {
			group.Add(1)
			go func() {
				defer group.Done()
				for number := uint64(0); number < rounds; number++ {
					if gopherHot(number) != number*7+3 {
						wrongs.Add(1)
					}
				}
				calls.Add(rounds)
				if gopherDeep(500) != 500 {
					wrongs.Add(1)
				}
			}()
		}
		runtime.GC()
		group.Wait()
		fmt.Println("calls", calls.Load())
	}
	if wrongs.Load() > 0 {
		fmt.Println("WRONG", wrongs.Load())
		os.Exit(1)
	}
	fmt.Println("ok", calls.Load())
}
