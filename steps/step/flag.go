package step

import (
	"errors"
	"os"
	"strings"

	"github.com/spf13/pflag"
)

// Var declares a flag whose value goes through a strict parser when it is set.
func Var[T any](flags *pflag.FlagSet, target *T, name, usage string, parse func(string) (T, error)) {
	flags.Var(&parsed{set: func(s string) (err error) {
		*target, err = parse(s)
		return err
	}}, name, usage)
}

// ListVar declares a flag that may be repeated, each value parsed strictly. As
// an environment variable it is a comma-separated list.
func ListVar[T any](flags *pflag.FlagSet, target *[]T, name, usage string, parse func(string) (T, error)) {
	flags.Var(&parsed{list: true, set: func(s string) error {
		value, err := parse(s)
		if err == nil {
			*target = append(*target, value)
		}
		return err
	}}, name, usage)
}

// parsed is a [pflag.Value] over a parser.
type parsed struct {
	text string
	list bool
	set  func(string) error
}

func (p *parsed) Set(s string) error {
	p.text = s
	return p.set(s)
}

func (p *parsed) String() string { return p.text }

func (p *parsed) Type() string {
	if p.list {
		return "list"
	}
	return "string"
}

// EnvName gives the environment variable that a flag falls back to.
func EnvName(flag string) string {
	return "FABRIQUE_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// FlagsFromEnv sets every flag that the command line left alone from its
// FABRIQUE_… variable, if there is one. A value that does not parse is bad
// input.
func FlagsFromEnv(flags *pflag.FlagSet) error {
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		value := os.Getenv(EnvName(f.Name))
		if f.Changed || value == "" || f.Name == "help" {
			return
		}
		values := []string{value}
		if p, ok := f.Value.(*parsed); ok && p.list {
			values = strings.Split(value, ",")
		}
		for _, v := range values {
			if err := flags.Set(f.Name, v); err != nil {
				errs = append(errs, Invalidf("reading the environment variable %s: %w", EnvName(f.Name), err))
			}
		}
	})
	return errors.Join(errs...)
}

// required gives an error that lists every named flag without a value.
func required(flags *pflag.FlagSet, names []string) error {
	var missing []string
	for _, name := range names {
		if flags.Lookup(name).Value.String() == "" {
			missing = append(missing, "--"+name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return Invalidf("missing %s; --help shows an example", strings.Join(missing, ", "))
}
