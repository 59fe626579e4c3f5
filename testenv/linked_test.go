package testenv

import (
	"debug/elf"
	"strings"
	"testing"
)

// The linker drops methods that nothing calls, unless something looks for methods by a name that it cannot know: ADR 3.
func TestUnusedMethodsAreNotLinked(t *testing.T) {
	const client = "aws-sdk-go-v2/service/s3.(*Client)."
	for _, program := range []string{"gateway", "runner"} {
		file, err := elf.Open(Build(t, program))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		symbols, err := file.Symbols()
		if err != nil {
			t.Fatal(err)
		}
		var used, unused bool
		for _, s := range symbols {
			used = used || strings.HasSuffix(s.Name, client+"GetObject")
			unused = unused || strings.HasSuffix(s.Name, client+"CreateBucket")
		}
		if !used || unused {
			t.Errorf("%s: GetObject is there: %t, CreateBucket, which nobody calls: %t", program, used, unused)
		}
	}
}
