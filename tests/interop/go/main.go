// The core scenarios by Apache's Go client. Prints one line for each: its name, then what came.
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	count   = 8
	waitMax = 90 * time.Second // a client looks for new topics every 30 s
)

var nameServers []string

func main() {
	rlog.SetLogLevel("error")
	nameServers = []string{os.Args[1]}
	sender := startProducer(producer.WithQueueSelector(producer.NewRoundRobinQueueSelector()))
	sendSync(sender, "go_sync")
	sendAsync(sender, "go_async")
	sendOneWay(sender, "go_oneway")
	sendBatch(sender, "go_batch")
	sendTagged(sender, "go_tags")
	sendSync(sender, "go_retry")
	check(sender.Shutdown())
	hashed := startProducer(producer.WithQueueSelector(producer.NewHashQueueSelector()))
	sendOrdered(hashed, "go_ordered")
	check(hashed.Shutdown())

	for _, topic := range []string{"go_sync", "go_async", "go_oneway", "go_batch"} {
		consume(topic, "*", count, false, false)
	}
	consume("go_tags", "red || blue", 5, false, false)
	consume("go_ordered", "*", count, true, false)
	consume("go_retry", "*", count, false, true)
}

func check(err error) {
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
}

func startProducer(option producer.Option) rocketmq.Producer {
	made, err := rocketmq.NewProducer(producer.WithNameServer(nameServers),
		producer.WithGroupName("go_producers"), producer.WithRetry(1),
		producer.WithInstanceName(fmt.Sprint("sender", time.Now().UnixNano())), option)
	check(err)
	check(made.Start())
	return made
}

func message(topic string, number int) *primitive.Message {
	return primitive.NewMessage(topic, []byte(fmt.Sprint(number)))
}

func sendSync(sender rocketmq.Producer, topic string) {
	offsets := map[int][]int64{}
	for i := 0; i < count; i++ {
		result, err := sender.SendSync(context.Background(), message(topic, i))
		check(err)
		queue := result.MessageQueue.QueueId
		offsets[queue] = append(offsets[queue], result.QueueOffset)
	}
	fmt.Println("sent", topic, offsets)
}

func sendAsync(sender rocketmq.Producer, topic string) {
	var waiting sync.WaitGroup
	waiting.Add(count)
	for i := 0; i < count; i++ {
		check(sender.SendAsync(context.Background(),
			func(_ context.Context, result *primitive.SendResult, err error) {
				check(err)
				waiting.Done()
			}, message(topic, i)))
	}
	waiting.Wait()
	fmt.Println("sent", topic)
}

func sendOneWay(sender rocketmq.Producer, topic string) {
	for i := 0; i < count; i++ {
		check(sender.SendOneWay(context.Background(), message(topic, i)))
	}
	fmt.Println("sent", topic)
}

func sendBatch(sender rocketmq.Producer, topic string) {
	var batch []*primitive.Message
	for i := 0; i < count; i++ {
		batch = append(batch, message(topic, i))
	}
	result, err := sender.SendSync(context.Background(), batch...)
	check(err)
	fmt.Println("sent", topic, result.Status, strings.Count(result.OffsetMsgID, ",")+1)
}

func sendTagged(sender rocketmq.Producer, topic string) {
	for i := 0; i < count; i++ {
		tagged := message(topic, i).WithTag([]string{"red", "green", "blue"}[i%3])
		_, err := sender.SendSync(context.Background(), tagged)
		check(err)
	}
	fmt.Println("sent", topic)
}

func sendOrdered(sender rocketmq.Producer, topic string) {
	for i := 0; i < count; i++ {
		keyed := message(topic, i).WithShardingKey(fmt.Sprint("key", i%2))
		keyed.WithProperty("key", fmt.Sprint(i%2))
		_, err := sender.SendSync(context.Background(), keyed)
		check(err)
	}
	fmt.Println("sent", topic)
}

// consume prints what a new group gets: the numbers sorted, or in their order by key; with retry,
// every message fails once and the second attempts count.
func consume(topic string, tags string, wanted int, ordered bool, retry bool) {
	var lock sync.Mutex
	var got []string
	byKey := map[string][]string{}
	attempts := map[string]int{}
	done := make(chan bool)
	made, err := rocketmq.NewPushConsumer(consumer.WithNameServer(nameServers),
		consumer.WithGroupName("from_"+topic), consumer.WithInstance(topic),
		consumer.WithConsumerOrder(ordered),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	check(err)
	handle := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		lock.Lock()
		defer lock.Unlock()
		for _, one := range messages {
			body := string(one.Body)
			attempts[body]++
			if retry && one.ReconsumeTimes == 0 {
				return consumer.ConsumeRetryLater, nil
			}
			got = append(got, body)
			byKey[one.GetProperty("key")] = append(byKey[one.GetProperty("key")], body)
			if len(got) == wanted {
				close(done)
			}
		}
		return consumer.ConsumeSuccess, nil
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: tags}
	check(made.Subscribe(topic, selector, handle))
	check(made.Start())
	select {
	case <-done:
	case <-time.After(waitMax):
	}
	check(made.Shutdown())
	lock.Lock()
	defer lock.Unlock()
	if ordered {
		fmt.Println("got", topic, byKey)
		return
	}
	sort.Strings(got)
	fmt.Println("got", topic, got)
}
