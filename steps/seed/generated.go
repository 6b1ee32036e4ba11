package seed

import (
	"context"
	"crypto/rand"
	"encoding/hex"

	"fabrique/steps/config"
)

// generated is a random value that is made once. If another Secret is to hold the same,
// first is asked: what it has is taken.
type generated struct {
	cluster
	to    config.SecretName
	key   string
	peers []config.SecretName // whose value it takes, if it has none
	same  bool                // whose value it must have
}

// randomBytes of each value; it is written as twice as many hexadecimal digits.
const randomBytes = 32

func (g *generated) Name() string { return "secret " + g.to.String() }

// peer gives the value of the first other Secret that has one.
func (g *generated) peer(ctx context.Context) ([]byte, error) {
	for _, n := range g.peers {
		value, err := g.value(ctx, n, g.key)
		if len(value) > 0 || err != nil {
			return value, err
		}
	}
	return nil, nil
}

func (g *generated) Check(ctx context.Context) (State, error) {
	value, err := g.value(ctx, g.to, g.key)
	if len(value) == 0 || err != nil {
		return absent, err
	}
	state := State{Exists: true}
	if !g.same {
		return state, nil
	}
	other, err := g.peer(ctx)
	if err != nil {
		return absent, err
	}
	if len(other) > 0 && string(other) != string(value) {
		state.Diff = append(state.Diff, g.key+": it is not that of "+g.peers[0].String())
	}
	return state, nil
}

func (g *generated) Mend(ctx context.Context) error {
	value, err := g.peer(ctx)
	if err != nil {
		return err
	}
	if len(value) == 0 {
		random := make([]byte, randomBytes)
		rand.Read(random) // it cannot fail
		value = []byte(hex.EncodeToString(random))
	}
	return g.put(ctx, g.to, map[string][]byte{g.key: value}, nil, nil)
}
