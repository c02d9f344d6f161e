"""P3: metrics, checked against scikit-learn and torchmetrics."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import sklearn.metrics as reference
import torch
import torchmetrics.functional.classification as torchmetrics
from hypothesis import given, settings
from hypothesis import strategies as st

from deepepochs import metrics

AVERAGES = ["micro", "macro", "weighted"]
BETAS = [0.5, 1.0, 2.0]
SCORES = [metrics.precision, metrics.recall, metrics.f1, metrics.fbeta]
ALL = [metrics.accuracy, *SCORES]


def sklearn_values(expected, predicted, average, beta=1.0):
    """Precision, recall, fbeta by scikit-learn; `average` None as in our default."""
    if average is None:
        average = "binary" if max(expected.max(), predicted.max()) < 2 else "micro"
    values = reference.precision_recall_fscore_support(
        expected.numpy(), predicted.numpy(), beta=beta, average=average, zero_division=0
    )
    return [float(value) for value in values[:3]]


def our_values(*args, average=None, beta=1.0, **kwargs):
    """Precision, recall, fbeta."""
    return [
        float(metrics.precision(*args, average=average, **kwargs)),
        float(metrics.recall(*args, average=average, **kwargs)),
        float(metrics.fbeta(*args, average=average, beta=beta, **kwargs)),
    ]


def sampled(classes, count=200):
    """Logits (count, classes) and targets, half of which are right."""
    logits = torch.randn(count, classes)
    targets = torch.randint(classes, (count,))
    targets[::2] = logits.argmax(1)[::2]
    return logits, targets


def sampled_binary(count=200):
    """Logits (count,) and targets, half of which are right."""
    logits = torch.randn(count)
    targets = torch.randint(2, (count,))
    targets[::2] = (logits[::2] > 0).long()
    return logits, targets


class TestAgainstScikitLearn:
    """P3: checked against scikit-learn."""

    @pytest.mark.parametrize("classes", [2, 3, 7])
    def test_confusion_matrix_has_targets_as_rows(self, classes):
        logits, targets = sampled(classes)
        ours = metrics.confusion_matrix(logits, targets)
        assert ours.dtype == torch.int64
        np.testing.assert_array_equal(ours.numpy(), reference.confusion_matrix(targets, logits.argmax(1)))

    @pytest.mark.parametrize("classes", [2, 3, 7])
    def test_accuracy_is_the_same(self, classes):
        logits, targets = sampled(classes)
        expected = reference.accuracy_score(targets, logits.argmax(1))
        assert float(metrics.accuracy(logits, targets)) == pytest.approx(expected)

    @pytest.mark.parametrize("beta", BETAS)
    @pytest.mark.parametrize("average", [None, *AVERAGES])
    @pytest.mark.parametrize("classes", [2, 3, 7])
    def test_scores_of_columns_are_the_same(self, classes, average, beta):
        logits, targets = sampled(classes)
        expected = sklearn_values(targets, logits.argmax(1), average, beta)
        assert our_values(logits, targets, average=average, beta=beta) == pytest.approx(expected)

    @pytest.mark.parametrize("beta", BETAS)
    @pytest.mark.parametrize("average", [None, *AVERAGES])
    def test_scores_of_one_column_are_the_same(self, average, beta):
        logits, targets = sampled_binary()
        expected = sklearn_values(targets, (logits > 0).long(), average, beta)
        assert our_values(logits, targets, average=average, beta=beta) == pytest.approx(expected)

    @settings(max_examples=150, deadline=None)
    @given(
        pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12),
        average=st.sampled_from([None, *AVERAGES]),
        beta=st.floats(0.01, 100),
    )
    def test_scores_are_the_same_where_classes_are_absent(self, pairs, average, beta):
        """Few samples of many classes: some are absent, some never predicted, some only predicted."""
        predicted, targets = torch.tensor(pairs).T
        expected = sklearn_values(targets, predicted, average, beta)
        assert our_values(predicted, targets, average=average, beta=beta) == pytest.approx(expected, abs=1e-7)
        if average is not None:  # None depends on the matrix's size
            matrix = metrics.confusion_matrix(predicted, targets, num_classes=9)
            assert our_values(conf_mat=matrix, average=average, beta=beta) == pytest.approx(expected, abs=1e-7)


class TestAgainstTorchmetrics:
    """P3: checked against torchmetrics."""

    @pytest.mark.parametrize("classes", [2, 3, 7])
    def test_confusion_matrix_and_accuracy_are_the_same(self, classes):
        logits, targets = sampled(classes)
        expected = torchmetrics.multiclass_confusion_matrix(logits, targets, classes)
        assert torch.equal(metrics.confusion_matrix(logits, targets), expected)
        expected = torchmetrics.multiclass_accuracy(logits, targets, classes, average="micro")
        torch.testing.assert_close(metrics.accuracy(logits, targets), expected)

    @pytest.mark.parametrize("average", AVERAGES)
    @pytest.mark.parametrize(("classes", "count"), [(2, 200), (3, 200), (7, 200), (40, 20)])
    def test_scores_of_columns_are_the_same(self, classes, count, average):
        """40 classes among 20 samples: many are absent, and do not count in the macro average."""
        logits, targets = sampled(classes, count)
        options = {"num_classes": classes, "average": average}
        for name in ("precision", "recall"):
            expected = getattr(torchmetrics, f"multiclass_{name}")(logits, targets, **options)
            torch.testing.assert_close(getattr(metrics, name)(logits, targets, average=average), expected)
        for beta in BETAS:
            expected = torchmetrics.multiclass_fbeta_score(logits, targets, beta, **options)
            torch.testing.assert_close(metrics.fbeta(logits, targets, beta=beta, average=average), expected)

    @pytest.mark.parametrize("kind", ["logits", "probabilities"])
    def test_scores_of_one_column_are_the_same(self, kind):
        logits, targets = sampled_binary()
        preds = logits.sigmoid() if kind == "probabilities" else logits
        assert torch.equal(
            metrics.confusion_matrix(preds, targets), torchmetrics.binary_confusion_matrix(preds, targets)
        )
        for name, reference_name in [("accuracy", "accuracy"), ("precision", "precision"), ("recall", "recall")]:
            expected = getattr(torchmetrics, f"binary_{reference_name}")(preds, targets)
            torch.testing.assert_close(getattr(metrics, name)(preds, targets), expected)
        for beta in BETAS:
            expected = torchmetrics.binary_fbeta_score(preds, targets, beta)
            torch.testing.assert_close(metrics.fbeta(preds, targets, beta=beta), expected)

    def test_segmentation_is_the_same(self):
        logits, targets = torch.randn(3, 4, 5, 6), torch.randint(4, (3, 5, 6))
        expected = torchmetrics.multiclass_confusion_matrix(logits, targets, 4)
        assert torch.equal(metrics.confusion_matrix(logits, targets), expected)


class TestByHand:
    """P3: a matrix small enough to count."""

    # class:       0  1
    matrix = torch.tensor([[5, 3], [1, 2]])  # of class 1: 2 tp, 3 fp, 1 fn

    def test_two_classes_take_class_1_as_positive(self):
        assert float(metrics.accuracy(conf_mat=self.matrix)) == pytest.approx(7 / 11)
        assert float(metrics.precision(conf_mat=self.matrix)) == pytest.approx(2 / 5)
        assert float(metrics.recall(conf_mat=self.matrix)) == pytest.approx(2 / 3)
        assert float(metrics.f1(conf_mat=self.matrix)) == pytest.approx(4 / 8)
        assert float(metrics.fbeta(conf_mat=self.matrix, beta=2)) == pytest.approx(10 / 17)

    def test_two_classes_are_averaged_if_asked(self):
        assert float(metrics.precision(conf_mat=self.matrix, average="micro")) == pytest.approx(7 / 11)
        assert float(metrics.precision(conf_mat=self.matrix, average="macro")) == pytest.approx((5 / 6 + 2 / 5) / 2)
        assert float(metrics.precision(conf_mat=self.matrix, average="weighted")) == pytest.approx(
            (5 / 6 * 8 + 2 / 5 * 3) / 11
        )

    def test_more_classes_default_to_micro(self):
        matrix = torch.tensor([[1, 0, 2], [0, 3, 1], [1, 1, 4]])
        for metric in SCORES:
            assert float(metric(conf_mat=matrix)) == pytest.approx(8 / 13)

    def test_f1_is_fbeta_of_1(self):
        for average in [None, *AVERAGES]:
            assert metrics.f1(conf_mat=self.matrix, average=average) == metrics.fbeta(
                conf_mat=self.matrix, average=average
            )

    def test_huge_and_tiny_beta_are_recall_and_precision(self):
        for beta, metric in [(1e200, metrics.recall), (float("inf"), metrics.recall), (1e-200, metrics.precision)]:
            assert metrics.fbeta(conf_mat=self.matrix, beta=beta) == metric(conf_mat=self.matrix)

    def test_counts_beyond_float32_are_exact(self):
        matrix = torch.tensor([[2**24, 1], [1, 2**24 + 1]])
        expected = torch.tensor((2**24 + 1) / (2**24 + 2), dtype=torch.float64).float()
        assert metrics.precision(conf_mat=matrix) == expected


class TestShapes:
    """P3: every shape of predictions and targets gives the same matrix."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
    def test_columns_may_be_logits_or_probabilities_of_any_float(self, dtype):
        preds, targets = torch.eye(4)[[0, 1, 2, 3, 3, 1]].to(dtype), torch.tensor([0, 1, 2, 3, 2, 1])
        expected = metrics.confusion_matrix(torch.tensor([0, 1, 2, 3, 3, 1]), targets)
        assert torch.equal(metrics.confusion_matrix(preds * 9 - 3, targets), expected)
        assert torch.equal(metrics.confusion_matrix(preds, targets), expected)

    @pytest.mark.parametrize("column", [False, True])
    @pytest.mark.parametrize("kind", ["logits", "probabilities", "float16", "ints", "bools"])
    def test_two_classes_may_be_one_column(self, kind, column):
        logits, targets = sampled_binary()
        expected = metrics.confusion_matrix(torch.stack([torch.zeros_like(logits), logits], 1), targets)
        preds = {
            "logits": logits,
            "probabilities": logits.sigmoid(),
            "float16": logits.half(),
            "ints": (logits > 0).int(),
            "bools": logits > 0,
        }[kind]
        preds = preds[:, None] if column else preds
        for each in (targets, targets[:, None], targets.float(), targets.bool(), targets.to(torch.uint8)):
            assert torch.equal(metrics.confusion_matrix(preds, each), expected)

    def test_thresholds_themselves_are_class_0(self):
        zeros = torch.zeros(3, dtype=torch.long)
        assert metrics.confusion_matrix(torch.tensor([0.5, 0.0, 1.0]), zeros).tolist() == [[2, 1], [0, 0]]
        assert metrics.confusion_matrix(torch.tensor([0.5, 0.0, -1.0]), zeros).tolist() == [[2, 1], [0, 0]]
        assert metrics.confusion_matrix(torch.tensor([0.5, 0.0, 1.1]), zeros).tolist() == [[1, 2], [0, 0]]

    @pytest.mark.parametrize("dtype", [torch.long, torch.float32, torch.bool])
    def test_targets_may_be_one_hot_or_soft(self, dtype):
        logits, targets = sampled(5)
        one_hot = torch.eye(5)[targets]
        expected = metrics.confusion_matrix(logits, targets)
        assert torch.equal(metrics.confusion_matrix(logits, one_hot.to(dtype)), expected)
        assert torch.equal(metrics.confusion_matrix(logits, one_hot.half() * 0.9 + 0.02), expected)

    def test_targets_may_be_floats_or_a_column(self):
        logits, targets = sampled(5)
        expected = metrics.confusion_matrix(logits, targets)
        for each in (targets.float(), targets.double()[:, None], targets[:, None], targets.to(torch.uint8)):
            assert torch.equal(metrics.confusion_matrix(logits, each), expected)

    @pytest.mark.parametrize("size", [(6,), (4, 3), (2, 3, 2)])
    def test_segmentation_counts_every_place(self, size):
        logits, targets = torch.randn(5, 3, *size), torch.randint(3, (5, *size))
        labels = logits.argmax(1)
        expected = reference.confusion_matrix(targets.flatten(), labels.flatten())
        for preds in (logits, logits.softmax(1), labels):
            np.testing.assert_array_equal(metrics.confusion_matrix(preds, targets).numpy(), expected)
            np.testing.assert_array_equal(metrics.confusion_matrix(preds, targets[:, None]).numpy(), expected)

    @pytest.mark.parametrize("kind", ["logits", "probabilities"])
    def test_segmentation_of_two_classes_may_be_one_channel(self, kind):
        logits, targets = torch.randn(5, 1, 4, 3), torch.randint(2, (5, 4, 3))
        expected = reference.confusion_matrix(targets.flatten(), (logits > 0).flatten())
        preds = logits.sigmoid() if kind == "probabilities" else logits
        np.testing.assert_array_equal(metrics.confusion_matrix(preds, targets).numpy(), expected)
        np.testing.assert_array_equal(metrics.confusion_matrix(preds, targets[:, None].float()).numpy(), expected)

    def test_integers_are_classes_in_any_shape(self):
        preds, targets = torch.tensor([[0, 1], [2, 2]]), torch.tensor([[0, 1], [1, 2]])
        assert metrics.confusion_matrix(preds, targets).tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 1]]

    def test_non_contiguous_input_is_read_right(self):
        logits, targets = torch.randn(3, 40).T, torch.randint(3, (40, 2))[:, 0]
        expected = reference.confusion_matrix(targets, logits.argmax(1), labels=range(3))
        np.testing.assert_array_equal(metrics.confusion_matrix(logits, targets).numpy(), expected)


class TestNumberOfClasses:
    """P3: how large the matrix is."""

    def test_columns_tell_it_whatever_occurs(self):
        assert metrics.confusion_matrix(torch.randn(2, 9), torch.tensor([0, 1])).shape == (9, 9)

    def test_highest_integer_tells_it(self):
        assert metrics.confusion_matrix(torch.tensor([0, 1]), torch.tensor([0, 4])).shape == (5, 5)
        assert metrics.confusion_matrix(torch.tensor([3, 1]), torch.tensor([0, 1])).shape == (4, 4)

    def test_single_class_is_one_of_two(self):
        assert metrics.confusion_matrix(torch.tensor([0, 0]), torch.tensor([0, 0])).tolist() == [[2, 0], [0, 0]]

    def test_given_number_enlarges(self):
        for preds in (torch.tensor([0, 1]), torch.tensor([-0.3, 1.2]), torch.randn(2, 3), torch.tensor([True, False])):
            assert metrics.confusion_matrix(preds, torch.tensor([0, 1]), num_classes=6).shape == (6, 6)


class TestConfusionMatrixInstead:
    """P3: a matrix in place of predictions and targets; T7: metric_patch='confusion' passes it alone."""

    @pytest.mark.parametrize("metric", ALL)
    @pytest.mark.parametrize("classes", [2, 4])
    def test_matrix_gives_what_predictions_give(self, metric, classes):
        logits, targets = sampled(classes)
        matrix = metrics.confusion_matrix(logits, targets)
        expected = metric(logits, targets)
        for value in (metric(matrix), metric(conf_mat=matrix), metric(conf_mat=matrix.float())):
            assert torch.equal(value, expected)

    @pytest.mark.parametrize("metric", SCORES)
    @pytest.mark.parametrize("average", AVERAGES)
    def test_matrix_gives_what_predictions_give_for_every_average(self, metric, average):
        logits, targets = sampled(3)
        matrix = metrics.confusion_matrix(logits, targets)
        assert torch.equal(metric(matrix, average=average), metric(logits, targets, average=average))

    @settings(max_examples=60, deadline=None)
    @given(data=st.data(), classes=st.integers(2, 5), kind=st.sampled_from(["scores", "labels"]))
    def test_summed_batch_matrices_equal_the_whole_matrix(self, data, classes, kind):
        sizes = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=6))
        generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
        preds = torch.randn(sum(sizes), classes, generator=generator)
        preds = preds if kind == "scores" else preds.argmax(1)
        targets = torch.randint(classes, (sum(sizes),), generator=generator)
        batches = zip(preds.split(sizes), targets.split(sizes))
        summed = sum(metrics.confusion_matrix(*batch, num_classes=classes) for batch in batches)
        assert torch.equal(summed, metrics.confusion_matrix(preds, targets, num_classes=classes))
        assert int(summed.sum()) == sum(sizes)


class TestZeroDivision:
    """P3: what has no value is 0."""

    @pytest.mark.parametrize("average", [None, *AVERAGES])
    def test_no_hit_is_0_as_in_scikit_learn(self, average):
        predicted, targets = torch.zeros(5, dtype=torch.long), torch.ones(5, dtype=torch.long)
        assert our_values(predicted, targets, average=average) == sklearn_values(targets, predicted, average) == [0] * 3

    def test_no_positive_at_all_is_0(self):
        zeros = torch.zeros(5, dtype=torch.long)
        assert our_values(zeros, zeros) == [0, 0, 0]
        assert float(metrics.accuracy(zeros, zeros)) == 1

    @pytest.mark.parametrize("preds", [torch.empty(0, 3), torch.empty(0), torch.empty(0, dtype=torch.long)])
    @pytest.mark.parametrize("average", [None, *AVERAGES])
    def test_no_samples_give_0(self, preds, average):
        targets = torch.empty(0, dtype=torch.long)
        assert int(metrics.confusion_matrix(preds, targets).sum()) == 0
        assert our_values(preds, targets, average=average) == [0, 0, 0]
        assert float(metrics.accuracy(preds, targets)) == 0


class TestPurity:
    """P3: functions of their arguments and of nothing else."""

    @pytest.mark.parametrize("metric", ALL)
    def test_changed_input_gives_a_new_value(self, metric):
        logits, targets = torch.eye(3) * 4, torch.arange(3)
        matrix = metrics.confusion_matrix(logits, targets)
        assert float(metric(logits, targets)) == float(metric(conf_mat=matrix)) == 1
        targets.copy_(torch.tensor([1, 2, 0]))
        matrix.copy_(matrix.roll(1, 0))
        assert float(metric(logits, targets)) == float(metric(conf_mat=matrix)) == 0
        logits.copy_(logits.roll(1, 1))
        assert float(metric(logits, targets)) == 1

    @pytest.mark.parametrize("metric", [metrics.confusion_matrix, *ALL])
    def test_input_is_not_changed(self, metric):
        logits, targets = sampled(3)
        kept = logits.clone(), targets.clone()
        metric(logits, targets)
        assert torch.equal(logits, kept[0])
        assert torch.equal(targets, kept[1])

    @pytest.mark.parametrize("metric", ALL)
    def test_result_is_a_float_without_gradient(self, metric):
        logits, targets = sampled(3)
        matrix = metrics.confusion_matrix(logits, targets).float().requires_grad_()
        for value in (metric(logits.requires_grad_(), targets), metric(matrix)):
            assert value.dtype == torch.float32
            assert value.shape == ()
            assert not value.requires_grad

    @pytest.mark.parametrize("metric", ALL)
    def test_result_is_the_same_under_inference_mode_and_autocast(self, metric):
        logits, targets = sampled(3)
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            value = metric(logits, targets)
        assert torch.equal(value, metric(logits, targets))


class TestNoWaiting:
    """P3, T9: a meta tensor has no values, so that any look at them raises; as on CUDA each would wait."""

    @pytest.mark.parametrize("metric", ALL)
    @pytest.mark.parametrize("shape", [(8, 3), (8,), (8, 1), (8, 3, 5), (8, 1, 5)])
    def test_no_value_of_scores_is_looked_at(self, metric, shape):
        preds = torch.empty(shape, device="meta")
        for dtype in (torch.long, torch.float32):
            targets = torch.empty((8, *shape[2:]), dtype=dtype, device="meta")
            assert metric(preds, targets).device.type == "meta"

    def test_no_value_of_one_hot_targets_is_looked_at(self):
        preds, targets = torch.empty(8, 3, device="meta"), torch.empty(8, 3, device="meta")
        assert metrics.confusion_matrix(preds, targets).shape == (3, 3)

    def test_no_value_of_integers_is_looked_at_if_the_number_of_classes_is_known(self):
        labels = torch.empty(8, dtype=torch.long, device="meta")
        assert metrics.confusion_matrix(labels, labels, num_classes=4).shape == (4, 4)
        assert metrics.confusion_matrix(labels.bool(), labels).shape == (2, 2)
        with pytest.raises(RuntimeError, match="meta"):
            metrics.confusion_matrix(labels, labels)

    @pytest.mark.parametrize("metric", SCORES)
    @pytest.mark.parametrize("average", [None, *AVERAGES])
    def test_no_value_of_a_matrix_is_looked_at(self, metric, average):
        assert metric(torch.empty(3, 3, device="meta"), average=average).device.type == "meta"

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
    def test_cuda_is_not_waited_for_and_gives_the_same(self):
        logits, targets = sampled(4)
        on_device = logits.cuda(), targets.cuda()
        torch.cuda.set_sync_debug_mode("error")
        try:
            values = [metric(*on_device) for metric in [metrics.confusion_matrix, *ALL]]
        finally:
            torch.cuda.set_sync_debug_mode("default")
        for value, metric in zip(values, [metrics.confusion_matrix, *ALL]):
            torch.testing.assert_close(value.cpu(), metric(logits, targets))


class TestRefusals:
    """P3: bad input is refused in words."""

    @pytest.mark.parametrize("metric", ALL)
    def test_arguments_that_do_not_go_together(self, metric):
        preds, targets, matrix = torch.randn(4, 2), torch.tensor([0, 1, 1, 0]), torch.eye(2)
        with pytest.raises(ValueError, match="either `conf_mat` or both `preds` and `targets`, got none of them"):
            metric()
        with pytest.raises(ValueError, match="got `targets`$"):
            metric(targets=targets)
        with pytest.raises(ValueError, match="got `preds` and `conf_mat`$"):
            metric(preds, conf_mat=matrix)
        with pytest.raises(ValueError, match="got `targets` and `conf_mat`$"):
            metric(targets=targets, conf_mat=matrix)
        with pytest.raises(ValueError, match="got `preds` and `targets` and `conf_mat`$"):
            metric(preds, targets, matrix)

    @pytest.mark.parametrize("metric", ALL)
    def test_matrices_that_are_none(self, metric):
        with pytest.raises(ValueError, match=r"square, \(classes, classes\), got \(4, 2\); `preds` without `targets`"):
            metric(torch.randn(4, 2))
        with pytest.raises(ValueError, match=r"square, \(classes, classes\), got \(4,\)"):
            metric(conf_mat=torch.arange(4))
        with pytest.raises(TypeError, match="`conf_mat` must be a tensor, got list"):
            metric(conf_mat=[[1, 0], [0, 1]])
        with pytest.raises(TypeError, match="`conf_mat` must hold int or float counts, got torch.bool"):
            metric(torch.eye(2).bool())

    @pytest.mark.parametrize("metric", SCORES)
    @pytest.mark.parametrize("average", ["binary", "samples", "Macro", 1])
    def test_unknown_averages(self, metric, average):
        with pytest.raises(ValueError, match=rf"`average` must be one of .*'micro', 'macro', 'weighted'.*{average}"):
            metric(torch.eye(2), average=average)

    @pytest.mark.parametrize("beta", [0, -1.0, float("nan")])
    def test_betas_that_are_not_positive(self, beta):
        with pytest.raises(ValueError, match="`beta` must be a positive number, got"):
            metrics.fbeta(torch.eye(2), beta=beta)

    @pytest.mark.parametrize("beta", ["1", None, True])
    def test_betas_that_are_no_numbers(self, beta):
        with pytest.raises(TypeError, match="`beta` must be a positive number, got"):
            metrics.fbeta(torch.eye(2), beta=beta)

    def test_what_is_no_tensor(self):
        with pytest.raises(TypeError, match="`preds` must be a tensor, got list"):
            metrics.confusion_matrix([0, 1], torch.tensor([0, 1]))
        with pytest.raises(TypeError, match="`targets` must be a tensor, got ndarray"):
            metrics.accuracy(torch.tensor([0, 1]), np.array([0, 1]))

    @pytest.mark.parametrize(
        ("preds", "targets", "message"),
        [
            (torch.randn(6, 2), torch.zeros(5), r"classes \(6,\) or \(6, 1\), or one-hot \(6, 2\), got \(5,\)"),
            (torch.randn(6, 2), torch.zeros(6, 3), r"or one-hot \(6, 2\), got \(6, 3\)"),
            (torch.randn(6, 2), torch.zeros(2, 3), r"or one-hot \(6, 2\), got \(2, 3\)"),
            (torch.randn(6), torch.zeros(6, 2), r"classes \(6,\) or \(6, 1\), got \(6, 2\)"),
            (torch.zeros(6, 2).long(), torch.zeros(6), r"int64 `preds` \(6, 2\).* got \(6,\);.*ints hold classes"),
            (torch.randn(2, 3, 4), torch.zeros(2, 3, 4), r"classes \(2, 4\) or \(2, 1, 4\), got \(2, 3, 4\)"),
            (torch.tensor(1.0), torch.tensor(1), r"`preds` must be \(N,\).*got \(\)"),
            (torch.randn(6, 0), torch.zeros(6), r"`preds` must be \(N,\).*got \(6, 0\)"),
        ],
    )
    def test_shapes_that_do_not_fit(self, preds, targets, message):
        with pytest.raises(ValueError, match=message):
            metrics.confusion_matrix(preds, targets)

    @pytest.mark.parametrize("target", [-100, -1, 3])
    def test_targets_out_of_range(self, target):
        targets = torch.tensor([0, target, 2])
        low, high = min(target, 0), max(target, 2)
        with pytest.raises(ValueError, match=f"`targets` must hold classes from 0 to 2, got {low} to {high}; leave"):
            metrics.confusion_matrix(torch.randn(3, 3), targets)

    def test_predictions_out_of_range(self):
        targets = torch.tensor([2, 1])
        for label, low, high in [(-1, -1, 0), (3, 0, 3)]:
            with pytest.raises(ValueError, match=f"`preds` must hold classes from 0 to 2, got {low} to {high}; leave"):
                metrics.confusion_matrix(torch.tensor([0, label]), targets, num_classes=3)
        with pytest.raises(ValueError, match="`preds` must hold classes from 0 to 2, got -1 to 0"):
            metrics.confusion_matrix(torch.tensor([0, -1]), targets)

    def test_targets_that_are_not_whole(self):
        for value in (0.5, float("nan")):
            with pytest.raises(ValueError, match=r"`targets` \(2,\) must be classes, got floats that are not whole"):
                metrics.confusion_matrix(torch.randn(2), torch.tensor([1.0, value]))

    def test_several_labels_a_sample(self):
        with pytest.raises(ValueError, match=r"`targets` \(2, 3\) of the shape of `preds` must be one-hot"):
            metrics.confusion_matrix(torch.randn(2, 3), torch.tensor([[1, 1, 0], [0, 0, 1]]))

    def test_numbers_of_classes(self):
        preds, targets = torch.randn(2, 3), torch.tensor([0, 1])
        with pytest.raises(ValueError, match="`num_classes` must be at least 3 for these `preds`, got 2"):
            metrics.confusion_matrix(preds, targets, num_classes=2)
        for number in (1, 0, -3):
            with pytest.raises(ValueError, match=f"`num_classes` must be at least 2 for these `preds`, got {number}"):
                metrics.confusion_matrix(targets, targets, num_classes=number)
        for number in (3.0, "3", True):
            with pytest.raises(TypeError, match="`num_classes` must be an int or None, got"):
                metrics.confusion_matrix(preds, targets, num_classes=number)


def test_names_and_arguments_are_those_promised():
    """P3."""
    head, average = ["preds", "targets", "conf_mat"], ["average"]
    promised = {
        "confusion_matrix": ["preds", "targets", "num_classes"],
        "accuracy": head,
        "precision": head + average,
        "recall": head + average,
        "f1": head + average,
        "fbeta": [*head, "beta", *average],
    }
    assert sorted(metrics.__all__) == sorted(promised)
    for name, arguments in promised.items():
        assert list(inspect.signature(getattr(metrics, name)).parameters) == arguments
