package git

import (
	"testing"

	"fabrique/bench/parts"
)

func TestMain(m *testing.M) { parts.Main(m) }
